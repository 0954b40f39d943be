"""Reinforcement learning in JAX, from the physics to the gradient."""
