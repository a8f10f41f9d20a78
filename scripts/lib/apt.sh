# shellcheck shell=bash
# Installs Debian packages by name, and only those that are missing. Sourced after common.sh.
#
# Invariants:
# 1. Where every package is there, neither apt-get nor root rights are used.
# 2. A package that brings a network service does not start it: nothing listens after the set-up that did not before.
#
# Failure modes: not a Debian system, no package source reached, a name unknown to this release: one message and the log's end.

# apt_missing NAME...: prints the packages of the list that are not installed, one a line.
apt_missing() {
    local -A there=()
    local name status
    while IFS=' ' read -r name status; do
        if [ "$status" = installed ]; then
            there[${name%%:*}]=1
        fi
    done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' -- "$@" 2>/dev/null || true)
    for name in "$@"; do
        if [ -z "${there[$name]:-}" ]; then
            printf '%s\n' "$name"
        fi
    done
}

# apt_get ARGUMENT...: apt-get without questions; waits up to five minutes for another package manager.
apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y \
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@"
}

# apt_install NAME...: installs what is missing of the list.
apt_install() {
    local -a missing=()
    mapfile -t missing < <(apt_missing "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        return 0
    fi
    command -v apt-get >/dev/null || die "this is not a Debian system; install by other means: ${missing[*]}"
    need_root "installing ${missing[*]}"
    mkdir -p "$deps_dir"
    : >"$deps_dir/apt.log"
    say "installing ${#missing[@]} Debian packages (log: $deps_dir/apt.log): ${missing[*]}"
    run_logged "$deps_dir/apt.log" apt_get update
    run_logged "$deps_dir/apt.log" apt_get install --no-install-recommends "${missing[@]}"
}

# apt_install_stopped SERVICE NAME...: like apt_install, for packages whose SERVICE must neither start now nor at boot.
# A machine with rules of its own for starting services (policy-rc.d) keeps them, and they decide.
apt_install_stopped() {
    local service=$1 policy=/usr/sbin/policy-rc.d ours=0 failed=0
    shift
    if [ -z "$(apt_missing "$@")" ]; then
        return 0
    fi
    need_root "installing $*"
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2016 # The $1 is for the file.
        printf '#!/bin/sh\n[ "$1" != %s ] || exit 101\n' "$service" | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        ours=1
    fi
    (apt_install "$@") || failed=1
    if [ $ours -eq 1 ]; then
        as_root rm -f "$policy"
        as_root rm -f "/etc/systemd/system/multi-user.target.wants/$service.service"
    fi
    [ $failed -eq 0 ] || exit 1
}
