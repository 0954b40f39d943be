"""Eight CPU devices for every test, so that pmap and shards are always exercised."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
