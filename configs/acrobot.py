from jaxrl_scale.algos.ppo import Config as PPO
from jaxrl_scale.config import Config
def get_config():
    return Config(env="Acrobot-v1", target_return=-100.0, algo=PPO())
