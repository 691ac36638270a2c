"""Adapters to the SDKs and protocols of others; each imports its own, and nothing imports them."""
