#!/bin/sh
# The first ten minutes on another release of Debian: a tree with its C library, Python and git, made by debootstrap, in
# it a fresh clone of this checkout's commit, and the make targets that are given (default: env test-quick).
#
#     tests/release.sh RELEASE [TARGET …]
#
# Needs root, debootstrap and 3 GB of disk. Mirror, certificates and names are those of this machine, and so is the kernel.
# All mounts are in a mount namespace of their own, and end with it; so does every process that the targets leave.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${OWN_MOUNTS:-}" ]; then
    exec unshare --mount --propagation private --pid --fork env OWN_MOUNTS=1 sh "tests/$(basename "$0")" "$@"
fi
release=${1:?name a release, such as trixie}
shift
[ $# -gt 0 ] || set -- env test-quick
mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
tree=$(mktemp -d)
trap 'umount -l "$tree"; rmdir "$tree"' EXIT
mount -t tmpfs -o size="${SIZE:-8G}" tree "$tree"
debootstrap --variant=minbase --include=python3,python3-venv,git,make,ca-certificates "$release" "$tree" "$mirror" >"$tree.log" 2>&1 \
    || { tail -n 5 "$tree.log" >&2; exit 1; }
rm "$tree.log"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount --bind /etc/ssl/certs "$tree/etc/ssl/certs"
cp --dereference /etc/resolv.conf /etc/hosts "$tree/etc/"
git clone --quiet . "$tree/root/anncestry"
for target in "$@"; do
    started=$(date +%s)
    env -u PYTHONPATH -u VIRTUAL_ENV -u VENV -u PIP_FIND_LINKS HOME=/root TMPDIR=/tmp \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot "$tree" make -C /root/anncestry "$target"
    echo "make $target: passed on $release, $(chroot "$tree" python3 --version), $(($(date +%s) - started)) s"
done
