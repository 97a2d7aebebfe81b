"""A campaign of faults against llsvm: see docs/reliability.md."""
