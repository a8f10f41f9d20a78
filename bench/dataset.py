#!/usr/bin/env python3
"""Makes the data set of the demonstration and the benchmarks: images in class directories, and tar shards.

    bench/dataset.py make DIR [--images N] [--shards N]         writes it below DIR; the same bytes every time
    bench/dataset.py upload DIR ENDPOINT BUCKET                 makes the bucket at an S3 server and fills it

`upload` takes the keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and needs boto3 (.deps/venv has it).

The bytes are pseudo-random, since what trains models is compressed already. An image has 90 to 130 KB, 110 KB on
average; a shard is a tar file of 32 MiB with images and labels in it, padded to that size.
"""

import argparse
import concurrent.futures
import io
import pathlib
import random
import sys
import tarfile

IMAGES, CLASSES, SHARDS = 2000, 20, 8
IMAGE_MIN_BYTES, IMAGE_MAX_BYTES = 90_000, 130_000
SHARD_BYTES = 32 << 20
UPLOAD_WORKERS = 8


def image(seed):
    """Bytes that begin and end as a JPEG file does."""
    source = random.Random(seed)
    return b"\xff\xd8\xff\xe0" + source.randbytes(source.randint(IMAGE_MIN_BYTES, IMAGE_MAX_BYTES) - 6) + b"\xff\xd9"


def make_image(directory, number):
    folder = directory / "images" / f"class-{number % CLASSES:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:05d}.jpg").write_bytes(image(f"image {number}"))


def add(archive, name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def make_shard(directory, number):
    folder = directory / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"shard-{number:05d}.tar", "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            sample = 0
            while archive.offset + IMAGE_MAX_BYTES + 8 * 512 < SHARD_BYTES:
                add(archive, f"{number:05d}-{sample:04d}.jpg", image(f"sample {number} {sample}"))
                add(archive, f"{number:05d}-{sample:04d}.cls", str(sample % CLASSES).encode())
                sample += 1
        file.truncate(SHARD_BYTES)  # zeros behind the end of an archive belong to it


def make(directory, images=IMAGES, shards=SHARDS):
    """Writes the data set below directory."""
    directory = pathlib.Path(directory)
    for number in range(images):
        make_image(directory, number)
    for number in range(shards):
        make_shard(directory, number)


def files_of(directory):
    """(key, path) of every file below directory, in the order of the keys."""
    directory = pathlib.Path(directory)
    return sorted((str(p.relative_to(directory)), p) for p in directory.rglob("*") if p.is_file())


def upload(client, bucket, directory):
    """Makes the bucket and puts every file below directory into it. `client` is boto3's."""
    client.create_bucket(Bucket=bucket)

    def put(pair):
        key, path = pair
        with open(path, "rb") as body:
            client.put_object(Bucket=bucket, Key=key, Body=body)
        return path.stat().st_size

    with concurrent.futures.ThreadPoolExecutor(UPLOAD_WORKERS) as pool:
        return sum(pool.map(put, files_of(directory)))


def upload_command(arguments):
    import boto3
    from botocore.config import Config
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=UPLOAD_WORKERS)
    client = boto3.client("s3", endpoint_url=arguments.endpoint, region_name="us-east-1", config=config)
    upload(client, arguments.bucket, arguments.directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("directory")
    maker.add_argument("--images", type=int, default=IMAGES)
    maker.add_argument("--shards", type=int, default=SHARDS)
    uploader = commands.add_parser("upload")
    for name in ("directory", "endpoint", "bucket"):
        uploader.add_argument(name)
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.directory, arguments.images, arguments.shards)
    else:
        upload_command(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
