"""From text files, JSON lines and Parquet to a token file, as an MPI job."""
