"""What bytes mean: element types, boxes of tensors, integer views, digests. Pure, no I/O.

Import from the modules: `dtypes` (the table), `block` (boxes), `tensors` (arrays as bytes and integer
views), `digest` (the additive digest). torch is imported only once a torch tensor is handed in, numba
only when enough elements are digested to pay for it.
"""
