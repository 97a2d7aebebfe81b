"""Linear support vector machines on data larger than memory, with a certificate of optimality."""

__version__ = "0.1.0"
