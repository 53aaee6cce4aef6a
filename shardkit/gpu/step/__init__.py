"""CUDA graphs of a training step: graphs.py chooses what computes, work.py captures and replays."""
