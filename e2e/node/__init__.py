"""Stories on a real node: pods that run, with what the kernel says of them."""
