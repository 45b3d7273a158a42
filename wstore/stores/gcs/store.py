"""Google Cloud Storage through its XML API."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from obstore.store import GCSStore as Client

from wstore.stores.base import Capabilities
from wstore.stores.gcs.credentials import Tokens
from wstore.stores.gcs.dialect import GCS
from wstore.stores.s3.bulk import NO_RETRIES, client_options
from wstore.stores.s3.xml_store import XmlStore

if TYPE_CHECKING:
    from wstore.stores.gcs.config import GcsConfig

# "There is a limit of one write per second to the same object name": Quotas & limits.
_CAPABILITIES = Capabilities(
    create_if_absent=True,
    if_match=True,
    pieces=GCS.limits,
    small_concurrency=32,
    overwrite_interval_s=1.0,
)


class GcsStore(XmlStore):
    """One bucket. Tags are generations. Safe from any thread, and in a forked child."""

    def __init__(self, bucket: str, config: GcsConfig) -> None:
        tokens = Tokens(config)
        super().__init__(
            bucket,
            config,
            tokens,
            partial(_client, bucket, config, tokens),
            capabilities=_CAPABILITIES,
        )


def _client(bucket: str, config: GcsConfig, tokens: Tokens) -> Client:
    options = client_options(config, bucket)
    if headers := config.request_headers():
        options["default_headers"] = headers
    return Client(
        bucket,
        base_url=config.target(bucket).base,
        skip_signature=config.anonymous,
        client_options=options,
        retry_config=NO_RETRIES,
        credential_provider=None if config.anonymous else tokens.for_obstore,
    )
