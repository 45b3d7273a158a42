"""S3, and servers that speak its protocol."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from obstore.store import S3Store as Client

from wstore.stores.base import Capabilities
from wstore.stores.s3.bulk import NO_RETRIES, client_options
from wstore.stores.s3.credentials import Provider
from wstore.stores.s3.dialect import S3
from wstore.stores.s3.xml_store import XmlStore

if TYPE_CHECKING:
    from wstore.stores.s3.config import S3Config

_CAPABILITIES = Capabilities(
    create_if_absent=True, if_match=True, pieces=S3.limits, small_concurrency=32
)


class S3Store(XmlStore):
    """One bucket of one S3 service. Safe from any thread, and in a forked child."""

    def __init__(self, bucket: str, config: S3Config) -> None:
        provider = Provider(config)
        super().__init__(
            bucket,
            config,
            provider,
            partial(_client, bucket, config, provider),
            capabilities=_CAPABILITIES,
        )


def _client(bucket: str, config: S3Config, provider: Provider) -> Client:
    place = config.target(bucket)
    return Client(
        bucket,
        # obstore reads the environment too; this name wins over every other way to set it.
        aws_endpoint_url_s3=place.base,
        endpoint=place.base,
        region=config.region,
        virtual_hosted_style_request=not place.bucket_in_path,
        skip_signature=config.anonymous,
        request_payer=config.requester_pays,
        client_options=client_options(config, bucket),
        retry_config=NO_RETRIES,
        credential_provider=None if config.anonymous else provider.for_obstore,
    )
