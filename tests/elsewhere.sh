#!/bin/sh
# The first ten minutes on a machine without apt: a fresh clone of this checkout's commit, an environment of its own, and
# the make targets that are given (default: env test-quick), where the programs of apt and dpkg can't be run.
#
#     tests/elsewhere.sh [TARGET …]
#
# Needs root (or user namespaces), for a mount namespace; nothing outside of it changes. All else is this machine's:
# its C library, Python and git. So it shows what needs apt, and not how another distribution differs.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${WITHOUT_APT:-}" ]; then
    exec unshare --mount ${UNPRIVILEGED:+--map-root-user} env WITHOUT_APT=1 sh "tests/$(basename "$0")" "$@"
fi
for program in apt apt-get apt-cache dpkg dpkg-deb dpkg-query; do
    for folder in /usr/bin /usr/local/bin; do
        if [ -e "$folder/$program" ]; then mount --bind /dev/null "$folder/$program"; fi
    done
done
if command -v apt-get >/dev/null; then echo "apt-get can still be run" >&2; exit 1; fi
clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
git clone --quiet . "$clone/anncestry"
cd "$clone/anncestry"
unset PYTHONPATH VIRTUAL_ENV VENV
[ $# -gt 0 ] || set -- env test-quick
for target in "$@"; do
    started=$(date +%s)
    make "$target"
    echo "make $target: passed without apt, $(($(date +%s) - started)) s"
done
