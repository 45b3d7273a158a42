"""Azure Blob Storage: `az://container/key`, `abfs(s)://container[@account.dfs.core.windows.net]/key`.

obstore carries everything but the pieces of uploads, which it can only send from one stream, in order
and each once; those go by `azure_blocks`. Names of variables are obstore's.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.store import AzureStore as Client

from wstore.errors import InvalidArgument
from wstore.stores.base import Capabilities, MiB, PieceLimits
from wstore.stores.objects.azure_blocks import Blocks
from wstore.stores.objects.store import ObstoreStore, Service
from wstore.stores.s3.bulk import NO_RETRIES, client_options
from wstore.stores.s3.config import Target
from wstore.stores.s3.dialect import S3, Dialect
from wstore.stores.s3.environment import Environment, Secret, is_this_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import AzureConfig as AzureClientConfig

    from wstore.stores.base import Store

# "Scalability and performance targets for Blob storage", Microsoft Learn.
LIMITS = PieceLimits(
    min_piece=1,
    max_piece=4000 * MiB,
    max_pieces=50_000,
    max_put=5000 * MiB,
    max_object=50_000 * 4000 * MiB,
)
_CAPABILITIES = Capabilities(
    create_if_absent=True, if_match=True, pieces=LIMITS, small_concurrency=32
)
_VERSION = "2023-11-03"

# The account of Microsoft's emulators, the same everywhere: "Use the Azurite emulator", Microsoft Learn.
EMULATOR_ACCOUNT = "devstoreaccount1"
EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_EMULATOR_ENDPOINT = "http://127.0.0.1:10000"

# What else decides who asks; obstore reads these itself.
_IDENTITY = (
    "AZURE_CREDENTIAL_TYPE",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_TENANT_ID",
    "AZURE_STORAGE_AUTHORITY_HOST",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_OBJECT_ID",
    "AZURE_MSI_RESOURCE_ID",
    "AZURE_USE_AZURE_CLI",
)


@dataclass(frozen=True, slots=True)
class AzureConfig:
    """One account, one identity. Hashable; its repr holds no secret; it does not pickle with one.

    Attributes:
        account: None where the URL must name it.
        key, sas, token: the account's key, a shared access signature, a bearer token; the first that
            is given counts. Without any, obstore finds an identity (workload, managed, CLI, secret).
        anonymous: requests show nobody's identity, for public containers.
        endpoint: of another service than Azure's own, with the account's path where it wants one.
        ca_bundle: PEM file with further authorities to trust.
        connect_timeout_s, idle_timeout_s: as of S3.
        identity: the variables behind obstore's search.

    Raises:
        InvalidArgument: the key is not base64, or a signature or token would be sent over plain http to
            another machine.
    """

    account: str | None = None
    key: Secret | None = field(default=None, repr=False)
    sas: Secret | None = field(default=None, repr=False)
    token: Secret | None = field(default=None, repr=False)
    anonymous: bool = False
    endpoint: str | None = None
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    identity: tuple[tuple[str, Secret | None], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.key is not None and not _is_base64(self.key.text):
            raise InvalidArgument(
                "AZURE_STORAGE_ACCOUNT_KEY (or _ACCESS_KEY, _MASTER_KEY) is not base64: copy the account's "
                "key again, whole"
            )
        parts = urlsplit(self.endpoint or "")
        host = parts.hostname or ""
        # An account's key only signs; obstore prefers a token to it.
        shown = not self.anonymous and (self.key is None or self.token is not None)
        if parts.scheme == "http" and not is_this_machine(host) and shown:
            raise InvalidArgument(
                "AZURE_STORAGE_ENDPOINT is plain http on another machine, where a token or signature could "
                "be read on its way: use https, or set AZURE_SKIP_SIGNATURE=true to send none"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> AzureConfig:
        """Read the AZURE_* and WSTORE_* variables; an empty variable counts as unset.

        Raises:
            InvalidArgument: a variable has a value that means nothing.
        """
        values = Environment(environment)
        emulator = values.true("AZURE_STORAGE_USE_EMULATOR")
        endpoint = values.first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        account = values.first("AZURE_STORAGE_ACCOUNT_NAME")
        key = values.first(
            "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"
        )
        sas = values.first("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN")
        if emulator:
            account = account or EMULATOR_ACCOUNT
            key = key or (EMULATOR_KEY if sas is None else None)
            place = values.first("AZURITE_BLOB_STORAGE_URL") or _EMULATOR_ENDPOINT
            endpoint = endpoint or f"{place.rstrip('/')}/{account}"
        return cls(
            account=account,
            key=_secret(key),
            sas=_secret(sas),
            token=_secret(values.first("AZURE_STORAGE_TOKEN")),
            anonymous=values.true("AZURE_SKIP_SIGNATURE"),
            endpoint=None if endpoint is None else _clean(endpoint),
            ca_bundle=values.file("SSL_CERT_FILE"),
            connect_timeout_s=values.seconds("WSTORE_CONNECT_TIMEOUT", 10.0),
            idle_timeout_s=values.seconds("WSTORE_IDLE_TIMEOUT", 60.0),
            identity=tuple((name, _secret(values.first(name))) for name in _IDENTITY),
        )

    # What `s3.wire` asks of a service

    @property
    def dialect(self) -> Dialect:
        """Only what an upload of blocks needs differs from S3's."""
        return AZURE

    @property
    def region(self) -> None:
        """Azure's requests name none."""

    @property
    def checksum(self) -> bool:
        """Azure knows no CRC-32C."""
        return False

    def target(self, bucket: str) -> Target:
        """Containers are always in the path."""
        parts = urlsplit(self.base)
        return Target(parts.scheme, parts.netloc, bucket_in_path=True)

    def request_headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"x-ms-version": _VERSION}

    def object_headers(self) -> dict[str, str]:
        """What every new object is created with."""
        return {}

    @property
    def base(self) -> str:
        """The URL that containers are below."""
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"


AZURE = replace(
    S3,
    service="Azure Blob Storage",
    scheme="az",
    endpoint_variable="AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
    ca_variable="SSL_CERT_FILE",
    metadata="x-ms-meta-",
    limits=LIMITS,
)


def open_azure(scheme: str, root: str) -> Store:
    """The container `root` ("container" or "container@account.dfs.core.windows.net") as the environment
    describes its account. No request is sent.

    Raises:
        InvalidArgument: the environment holds a value that means nothing, names no account, or an endpoint
            of another account than the URL.
    """
    config = AzureConfig.from_environment()
    container, _, host = root.partition("@")
    if host:
        account, _, domain = host.partition(".")
        endpoint = config.endpoint
        if endpoint is None:
            endpoint = f"https://{account}.blob.{domain.partition('.')[2]}"
        elif (served := _account_of(endpoint) or config.account) != account:
            text = (
                f"the URL names the account {account!r}, AZURE_STORAGE_ENDPOINT is of {served or 'none'!r}: "
                f"unset it, or write {scheme}://{container}/... for the endpoint's own account"
            )
            raise InvalidArgument(text, url=f"{scheme}://{root}")
        config = replace(config, account=account, endpoint=endpoint)
    if config.account is None:
        text = (
            "no storage account: set AZURE_STORAGE_ACCOUNT_NAME, or write "
            f"abfss://{container}@ACCOUNT.dfs.core.windows.net"
        )
        raise InvalidArgument(text, url=f"{scheme}://{root}")
    url = f"{scheme}://{root}"
    blocks = Blocks(url, container, config)
    # Blob names with a backslash come back with a slash in its place.
    return ObstoreStore(
        Service(
            url,
            _CAPABILITIES,
            lambda: _client(container, config),
            blocks.begin,
            blocks.close,
            mangled="\\",
        )
    )


def _client(container: str, config: AzureConfig) -> Client:
    assert config.account is not None
    # obstore reads the environment as well; what is said here wins.
    shown: AzureClientConfig = {}
    if config.anonymous:
        shown["skip_signature"] = True
    elif config.key is not None:
        shown["account_key"] = config.key.text
    elif config.sas is not None:
        shown["sas_key"] = config.sas.text
    return Client(
        container,
        config=shown,
        account_name=config.account,
        endpoint=config.base,
        use_emulator=False,
        client_options=client_options(config, container),
        retry_config=NO_RETRIES,
    )


def _account_of(endpoint: str) -> str | None:
    """The account that an endpoint names: in its path as emulators do, or first in one of Azure's hosts.
    None where it does not say (a domain of one's own)."""
    parts = urlsplit(endpoint)
    if path := parts.path.strip("/"):
        return path.rpartition("/")[2]
    account, _, domain = (parts.hostname or "").partition(".")
    return account if ".blob." in f".{domain}" else None


def _secret(text: str | None) -> Secret | None:
    return None if text is None else Secret(text.strip())


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False


def _clean(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise InvalidArgument(
            "AZURE_STORAGE_ENDPOINT is not a URL: write http(s)://host[:port][/account]"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument(
            "AZURE_STORAGE_ENDPOINT has a query: give a signature in AZURE_STORAGE_SAS_TOKEN"
        )
    return endpoint.rstrip("/")
