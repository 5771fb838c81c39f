"""Write the SavedModels of this folder: a function of JAX and one of TensorFlow. Needs tensorflow and jax.

Run it in an environment of its own: ``pip install tensorflow-cpu jax``.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no folders of this machine in locations

HERE = Path(__file__).parent
X = tf.TensorSpec([None, 4], tf.float32, name="x")


class Layer(tf.Module):
    """A linear layer and a sine, for two platforms and any batch."""

    def __init__(self):
        super().__init__()
        weight = np.arange(12, dtype=np.float32).reshape(4, 3)
        self.parameters = [tf.Variable(weight), tf.Variable(np.array([1, 2, 3], np.float32))]
        self.converted = jax2tf.convert(
            lambda p, x: {"y": jnp.sin(x @ p[0]) + p[1], "sum": x.sum()},
            polymorphic_shapes=[None, "(b, 4)"],
            native_serialization_platforms=["cpu", "tpu"],
            with_gradient=False,
        )

    @tf.function(input_signature=[X], autograph=False)
    def __call__(self, x):
        return self.converted(self.parameters, x)


class Plain(tf.Module):
    """An addition in TensorFlow's own operations."""

    @tf.function(input_signature=[X], autograph=False)
    def __call__(self, x):
        return {"y": x + 1}


for name, module in (("saved_model", Layer()), ("saved_model_of_tensorflow", Plain())):
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"serving_default": module.__call__})
        for file in Path(folder).rglob("*"):
            if file.is_file() and file.name != "fingerprint.pb":
                target = HERE / name / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
