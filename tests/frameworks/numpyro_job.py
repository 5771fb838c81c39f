"""NumPyro: samples of NUTS, chains on several devices, variational inference, and predictions.

Each step of NUTS makes a difference of rounding larger, until the samples differ. So the first samples are compared one
by one, and the means of many by their statistical error.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from framework_jobs import Results, part
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools() -> None:
    """Sample the effects of lessons in eight schools."""
    mean, scale = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("scale", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        offset = numpyro.sample("offset", dist.Normal(0, 1))
        numpyro.sample("effect", dist.Normal(mean + scale * offset, ERRORS), obs=EFFECTS)


@part(tolerance=1e-2)
def first_samples_of_nuts() -> Results:
    sampler = MCMC(NUTS(eight_schools), num_warmup=10, num_samples=10, progress_bar=False)
    sampler.run(jax.random.key(0))
    return {name: values for name, values in sampler.get_samples().items() if name != "offset"}


@part(tolerance=0.3)
def means_of_chains_on_four_devices() -> Results:
    sampler = MCMC(NUTS(eight_schools), num_warmup=200, num_samples=200, num_chains=4, progress_bar=False)
    sampler.run(jax.random.key(0))
    samples = sampler.get_samples(group_by_chain=True)["mean"]
    assert samples.shape == (4, 200)
    return {"mean": samples.mean(), "deviation": samples.std()}


def classifier(x: jax.Array, y: jax.Array | None = None) -> None:
    """Sample classes of points."""
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(2), 1).to_event(1))
    numpyro.sample("class", dist.Bernoulli(logits=x @ weights), obs=y)


@part()
def variational_inference() -> Results:
    x = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0]) > 0).astype(np.int32)
    guide = autoguide.AutoNormal(classifier)
    inference = SVI(classifier, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    result = inference.run(jax.random.key(0), 100, x, y, progress_bar=False)
    predict = Predictive(classifier, guide=guide, params=result.params, num_samples=50)
    return {
        "losses": result.losses,
        "weights": result.params["weights_auto_loc"],
        "predictions": predict(jax.random.key(1), x)["class"].mean(0),
    }
