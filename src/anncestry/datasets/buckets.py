"""Objects of S3 and of what speaks its protocol, by the settings that its tools share.

Addresses are s3://BUCKET/KEY. Endpoint, region, profile and credentials are those of the environment and of ~/.aws, as
for the AWS command line (AWS_ENDPOINT_URL, AWS_PROFILE, …); without credentials the requests are not signed, as public
buckets want it. No record holds any of them.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from anncestry.errors import ConfigError, DataError
from anncestry.progress import Progress

SCHEME = "s3"
_TIMEOUT_S, _ATTEMPTS = 10.0, 3


def download(url: str, path: Path, most: int) -> None:
    """Write the object to `path`; DataError if it can't be had, or is longer than `most` bytes."""
    import boto3  # type: ignore[import-untyped]
    from boto3.exceptions import Boto3Error  # type: ignore[import-untyped]
    from botocore import UNSIGNED  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    bucket, key = _named(url)
    try:
        session = boto3.Session()
        signed = {} if session.get_credentials() else {"signature_version": UNSIGNED}
        retries = {"max_attempts": _ATTEMPTS, "mode": "standard"}
        waits = {"connect_timeout": _TIMEOUT_S, "read_timeout": 6 * _TIMEOUT_S}
        client = session.client("s3", config=Config(retries=retries, **waits, **signed))
        size = int(client.head_object(Bucket=bucket, Key=key)["ContentLength"])
        if size > most:
            raise DataError(f"{url}: is {size} bytes long, but the config allows at most {most}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with Progress(path.name.removesuffix(".part"), size, "B") as progress, open(path, "wb") as file:
            done = 0

            def more(count: int) -> None:
                nonlocal done
                done += count
                progress.at(done)

            client.download_fileobj(bucket, key, file, Callback=more)
    except ClientError as error:
        said = error.response.get("Error", {})
        reason = {"404": "there is no such object, or bucket", "403": "access denied"}.get(str(said.get("Code")))
        raise DataError(f"{url}: {reason or said.get('Message') or error}") from None
    except (BotoCoreError, Boto3Error) as error:
        raise DataError(f"{url}: {' '.join(str(error).split())}") from None
    if path.stat().st_size != size:
        raise DataError(f"{url}: {path.stat().st_size} of {size} bytes came")


def _named(url: str) -> tuple[str, str]:
    """Bucket and key of an address."""
    parsed = urlsplit(url)
    if parsed.scheme != SCHEME or not parsed.netloc or not parsed.path.strip("/"):
        raise ConfigError(f"source url {url}: write s3://BUCKET/KEY")
    return parsed.netloc, parsed.path.lstrip("/")
