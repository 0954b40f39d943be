from jaxrl_scale.algos.ppo import Config as PPO
from jaxrl_scale.config import Config
def get_config():
    return Config(env="CartPole-v1", target_return=475.0, algo=PPO())
