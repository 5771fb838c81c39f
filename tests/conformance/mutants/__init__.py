"""Copies of the tiny plugin with one fault each, which show the worth of the conformance suite."""
