"""PPO's options on LunarLander: 32 settings with 4 seeds each, for 1,000,000 steps. About twelve
minutes on two cores. `configs/lunar_lander.py` has what it found (benchmarks/README.md).

    python -m jaxrl_scale.sweep --sweep=configs/sweeps/lunar_lander.py --run_dir=runs/lander_sweep
"""


def get_sweep() -> dict[str, object]:
    return {
        "config": "configs/lunar_lander.py",
        "agents": 128,
        "seeds": 4,
        "seed": 2000,
        "draw_seed": 1,
        "total_steps": 1_000_000,
        "eval_episodes": 32,
        "algo.learning_rate": "log:1.5e-3:5e-3",
        "algo.lr_schedule": ["constant", "linear"],
        "algo.gae_lambda": "uniform:0.96:0.99",
        "algo.gamma": "uniform:0.993:0.9995",
        "algo.entropy_coef": [0.0, 0.01],
    }
