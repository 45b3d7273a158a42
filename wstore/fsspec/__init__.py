"""wstore as an fsspec file system: pandas, torch DCP, zarr and others write through its guarantees.

    wstore://s3://bucket/key     "wstore://" before any URL that `StoragePath` takes
    wstore:///abs/path           a local path
    wstore::s3://bucket/key      fsspec's form of a chain; fsspec then needs a package of its own for "s3"

Inside the file system a path is the same without "wstore://". Listings give names that begin with the
path as it was asked, so of the same form. Only for the chain fsspec cuts the inner scheme off before it
hands the path over, and names are without it: "bucket/key".
"""

from wstore.fsspec.system import WStoreFileSystem

__all__ = ["WStoreFileSystem"]
