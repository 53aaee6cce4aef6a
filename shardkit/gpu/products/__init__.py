"""Products of CuPy arrays: product.py chooses, cublas.py and cublaslt.py call the libraries."""
