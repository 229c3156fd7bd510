"""Plan a measurement and carry it out with a runner."""
