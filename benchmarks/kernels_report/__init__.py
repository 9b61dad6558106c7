"""What can be shown of the kernels without a GPU: twins, interpreter, split level, ahead-of-time compilation."""
