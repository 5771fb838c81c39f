"""Serving a model over HTTP: the Open Inference Protocol, version 2, with dynamic batches and buckets of sizes."""
