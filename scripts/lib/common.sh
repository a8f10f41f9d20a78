# shellcheck shell=bash
# What the scripts of this folder share: messages, the place of the tree, root rights, locks.
# Sourced, never run. A caller has set `set -euo pipefail`.
#
# Invariants:
# 1. Nothing here asks a question: what needs an answer ends with a message that says what to do.
# 2. Nothing is written outside $deps_dir, except by apt-get and below $cache_dir.
# 3. Progress and errors go to standard error; standard output belongs to the caller's result.
#
# Failure modes: no root rights and no sudo -> `need_root` ends the script; the lock held by another run -> `lock_deps` waits.

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
deps_dir=$root_dir/.deps
# What is worth keeping for the next clone; empty where the user has no home.
cache_dir=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
cache_dir=${cache_dir:+$cache_dir/forebay}

# say TEXT...: one line of progress.
say() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# die TEXT...: one line that says what was wrong, then the end.
die() {
    say "$*"
    exit 1
}

# need_root WHY: makes sure that as_root works; sudo may ask for a password, on a terminal only.
need_root() {
    if [ "$(id -u)" -eq 0 ]; then
        return 0
    fi
    command -v sudo >/dev/null || die "$1 needs root rights: run scripts/setup once as root, or install sudo"
    if sudo -n true 2>/dev/null; then
        return 0
    fi
    if [ ! -t 0 ] || ! sudo -v; then
        die "$1 needs root rights: run scripts/setup once as root, or from a terminal where sudo can ask for a password"
    fi
}

# as_root COMMAND...: runs it with the rights that need_root made sure of.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n -- "$@"
    fi
}

# lock_deps: holds the tree's dependency folder for this process, so that two runs do not install at once.
# It ends with unlock_deps or with the process.
lock_deps() {
    mkdir -p "$deps_dir"
    exec {deps_lock_fd}>"$deps_dir/lock"
    if ! flock -n "$deps_lock_fd"; then
        say "waiting for another run that holds $deps_dir/lock"
        flock "$deps_lock_fd"
    fi
}

unlock_deps() {
    exec {deps_lock_fd}>&-
}

# run_logged LOG COMMAND...: runs it with its output added to LOG; where it fails, shows the end of LOG and ends the script.
run_logged() {
    local log=$1
    shift
    if ! ("$@") >>"$log" 2>&1 </dev/null; then
        tail -n 25 "$log" >&2
        die "failed: $* (whole output: $log)"
    fi
}
