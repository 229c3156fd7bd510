"""Many models: a matrix, its cells on Dask's workers, and the page of all."""
