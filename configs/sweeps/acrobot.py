"""PPO's options on Acrobot from wide ranges: 256 settings with 4 seeds each, of which one in nine
is trained to the end. About four minutes on two cores (benchmarks/README.md).

    python -m jaxrl_scale.sweep --sweep=configs/sweeps/acrobot.py --run_dir=runs/acrobot_sweep
"""


def get_sweep() -> dict[str, object]:
    return {
        "config": "configs/acrobot.py",
        "agents": 1024,
        "seeds": 4,
        "rungs": 2,
        "fresh_seeds": 64,
        "total_steps": 300_000,
        "eval_episodes": 32,
        "algo.learning_rate": "log:1e-5:1e-1",
        "algo.entropy_coef": "log:1e-4:1e-1",
        "algo.gae_lambda": "uniform:0.5:1",
        "algo.gamma": "uniform:0.9:1",
        "algo.clip_epsilon": "uniform:0.05:0.5",
        "algo.max_grad_norm": [0.1, 0.5, 2],
    }
