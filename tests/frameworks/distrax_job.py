"""Distrax: samples and densities of distributions, a hidden Markov model."""

from __future__ import annotations

import distrax
import jax
import jax.numpy as jnp
from framework_jobs import Results, part

DISTRIBUTIONS = {
    "bernoulli": distrax.Bernoulli(0.3),
    "beta": distrax.Beta(2.0, 3.0),
    "categorical": distrax.Categorical(logits=jnp.arange(4.0)),
    "gamma": distrax.Gamma(2.0, 3.0),
    "gumbel": distrax.Gumbel(0.0, 1.0),
    "laplace": distrax.Laplace(0.0, 1.0),
    "normals": distrax.MultivariateNormalTri(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.5, 2.0]])),
    "von mises": distrax.VonMises(0.0, 1.0),
}


@part()
def distributions() -> Results:
    results = {}
    for name, distribution in DISTRIBUTIONS.items():
        samples = distribution.sample(seed=jax.random.key(0), sample_shape=(8,))
        results |= {f"samples of {name}": samples, f"density of {name}": distribution.log_prob(samples)}
    return results


@part()
def hidden_markov_model() -> Results:
    model = distrax.HMM(
        distrax.Categorical(probs=jnp.array([0.6, 0.4])),
        distrax.Categorical(probs=jnp.array([[0.7, 0.3], [0.2, 0.8]])),
        distrax.Normal(jnp.array([0.0, 3.0]), jnp.ones(2)),
    )
    states, observations = model.sample(seed=jax.random.key(0), seq_len=12)
    return {
        "states": states,
        "observations": observations,
        "likeliest": model.viterbi(observations),
        "likelihood": model.forward_backward(observations)[-1],
    }
