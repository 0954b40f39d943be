r"""Throughput of Rejax's training loops (PPO, DQN, PQN), to set beside our own.

Rejax is used as a library and is not a dependency of this project; give it an
environment of its own (tried with Python 3.11):

    python3.11 -m venv rejax-venv
    rejax-venv/bin/pip install rejax==0.1.3 gymnax==0.0.9 jax==0.10.2 jaxlib==0.10.2 \
        flax==0.12.8 optax==0.2.8 distrax==0.1.9 chex==0.1.92
    rejax-venv/bin/python rejax_throughput.py --env CartPole-v1 --config b --seconds 10

What is timed: calls of `train(train_state=...)`, Rejax's own loop, compiled
ahead of time, each training on from the state the last one returned, until the
result is ready. One call is CHUNK environment steps, so it holds rollouts, targets,
shuffling and all gradient steps of several iterations, and nothing else: the
evaluation is replaced by a callback that does nothing and the initial one is
skipped, so no evaluation is compiled or run. Excluded: imports, compilation,
creating the initial state, and one warm-up call.

`steps_per_second` is the median over the calls made in --seconds (at least
three), `best` the fastest of them; `steps` and `seconds` are totals over all.
`compile_seconds` is tracing and compiling of the initialisation and of the loop
together.

With ``--agents N`` so many agents with seeds of their own train side by side, by `jax.vmap` over
their states, as Rejax's README does it.

PPO's model is two separate networks of 64-64 tanh units, those of DQN and PQN have 64-64
relu units, PQN's with layer normalisation; float32, Adam, gradients clipped at 0.5. Rejax
clips element by element, not by global norm. JAX uses every
core the process may run on; restrict it from outside (`taskset -c 0,1 ...`).
"""

import argparse
import json
import statistics
import time

import jax
import rejax

CONFIGS = {
    "b": {"num_envs": 64, "num_steps": 128, "num_minibatches": 4, "num_epochs": 4},
    "c": {"num_envs": 1024, "num_steps": 32, "num_minibatches": 4, "num_epochs": 2},
    "d": {"num_envs": 8, "num_steps": 128, "num_minibatches": 4, "num_epochs": 4},
    "a2c": {"num_envs": 64, "num_steps": 16, "num_minibatches": 1, "num_epochs": 1},
    "dqn": {"num_envs": 32, "num_epochs": 2, "batch_size": 256},  # gradient steps after each step
    "pqn": {"num_envs": 64, "num_steps": 128, "num_minibatches": 4, "num_epochs": 4},
}
ALGORITHMS = {
    "ppo": {
        "agent_kwargs": {"hidden_layer_sizes": (64, 64), "activation": "tanh"},
        **{"gae_lambda": 0.95, "clip_eps": 0.2, "vf_coef": 0.5, "ent_coef": 0.01},
    },
    "dqn": {
        "agent_kwargs": {"activation": "relu"},
        **{"buffer_size": 51_200, "fill_buffer": 1_024, "polyak": 0.99},
    },
    "pqn": {"td_lambda": 0.65},
}
CHUNK = 131_072  # steps in one timed call: 16 iterations of b, 4 of c, of all agents together


def make_algorithm(env: str, config: str, steps: int):
    name = config if config in ALGORITHMS else "ppo"
    algorithm = rejax.get_algo(name).create(
        env=env,
        learning_rate=3e-4,
        gamma=0.99,
        max_grad_norm=0.5,
        normalize_observations=False,
        normalize_rewards=False,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        **ALGORITHMS[name],
        **CONFIGS[config],
    )
    assert steps % (CONFIGS[config]["num_envs"] * CONFIGS[config].get("num_steps", 1)) == 0
    # The default callback plays 128 whole episodes after every eval_freq steps.
    return algorithm.replace(eval_callback=lambda algo, ts, rng: ())


def measure(env: str, config: str, seconds: float, seed: int, agents: int) -> dict:
    size = CONFIGS[config]
    # of each agent
    steps = max(CHUNK // agents, size["num_envs"] * size.get("num_steps", 1))
    algorithm = make_algorithm(env, config, steps)

    # Ahead of time, because plain jit would compile again inside the timing: each
    # trace of init_state defines a new state class, and the initial state holds
    # weakly typed scalars where the trained one may not.
    def train(state):
        return algorithm.train(train_state=state)[0]

    key = jax.random.split(jax.random.key(seed), agents)
    start = time.perf_counter()
    initialise = jax.jit(jax.vmap(algorithm.init_state)).lower(key).compile()
    compile_seconds = time.perf_counter() - start
    state = jax.block_until_ready(initialise(key))
    start = time.perf_counter()
    train = jax.jit(jax.vmap(train)).lower(state).compile()
    compile_seconds += time.perf_counter() - start

    state = jax.block_until_ready(train(state))
    durations = []
    while len(durations) < 3 or sum(durations) < seconds:
        start = time.perf_counter()
        state = jax.block_until_ready(train(state))
        durations.append(time.perf_counter() - start)
    # Rejax counts steps in int32; compare modulo 2**32.
    trained = steps * (len(durations) + 1)
    assert (int(state.global_step[0]) - trained) % 2**32 == 0
    return {
        "env": env,
        "config": config,
        "steps_per_second": round(statistics.median(agents * steps / d for d in durations)),
        "seconds": round(sum(durations), 3),
        "steps": agents * steps * len(durations),
        "compile_seconds": round(compile_seconds, 2),
        "jax": jax.__version__,
        "repetitions": len(durations),
        "best": round(agents * steps / min(durations)),
        "platform": jax.default_backend(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", choices=["CartPole-v1", "Acrobot-v1"], required=True)
    parser.add_argument("--config", choices=sorted(CONFIGS), required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="time to measure for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agents", type=int, default=1, help="that train side by side")
    args = parser.parse_args()
    print(json.dumps(measure(args.env, args.config, args.seconds, args.seed, args.agents)))


if __name__ == "__main__":
    main()
