"""What `kernels` computes, on any torch device and bit for bit the same.

torch has little arithmetic on unsigned integers, so elements are signed integers of their width (a sum
or a product mod 2^w is the same), and a logical shift is an arithmetic one with the sign's copies masked
off. Work goes in slices, so that temporaries on the device are bounded. Imports torch.
"""
