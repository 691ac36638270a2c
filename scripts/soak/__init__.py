"""Runs that kill, starve and cut the power of a session that writes, and count what is lost."""
