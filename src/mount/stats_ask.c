/* Asking a mount what it does, and its answer (contract in stats.h). */
#include "mount/tree.h"

bool stats_check_slow(struct stats_slow slow[STATS_SLOW_MAX], uint32_t *n)
{
    bool is_known = true;
    *n = MIN(*n, (uint32_t)STATS_SLOW_MAX);
    for (uint32_t i = 0; i < *n; i++) {
        is_known = is_known && slow[i].operation < STATS_N_OPERATIONS &&
                   (slow[i].waited_op == 0 || wire_op_info(slow[i].waited_op));
        slow[i].target[STATS_TARGET_BYTES - 1] = '\0';
    }
    return is_known;
}

int stats_ask(const char *directory, struct stats_report *ret, struct err *e)
{
    int r = mount_ask_directory(directory, MOUNT_IOC_STATS, ret, e);
    if (r < 0)
        return r;
    ret->bucket[sizeof(ret->bucket) - 1] = ret->directory[sizeof(ret->directory) - 1] = '\0';
    ret->node[sizeof(ret->node) - 1] = ret->reason[sizeof(ret->reason) - 1] = '\0';
    ret->n_running = MIN(ret->n_running, (uint32_t)STATS_RUNNING_MAX);
    bool is_known = stats_check_slow(ret->slow, &ret->n_slow);
    for (uint32_t i = 0; i < ret->n_running; i++)
        is_known = is_known && ret->running[i].operation < STATS_N_OPERATIONS;
    return is_known ? 0 : err_set(e, -ENOTTY, "%s: the mount is of another version of forebay", directory);
}

/* ---- the side of the mount ---- */

static uint64_t count_open(struct mount *m)
{
    uint64_t n = 0;
    if (m->tree) {
        LOCK_SCOPE(&m->tree->lock);
        for (const struct tree_handle *h = m->tree->handles; h; h = h->next)
            n++;
        return n;
    }
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (const struct handle *h = m->handles; h; h = h->next)
        n++;
    return n;
}

void stats_tell(struct mount *m, struct stats_report *ret)
{
    ret->pid = (uint32_t)getpid();
    ret->is_scratch = m->tree != NULL;
    ret->is_passthrough = atomic_load(&m->is_passthrough);
    ret->is_read_only = m->read_only;
    ret->is_openless = m->options->profile == MOUNT_PROFILE_READ_ONLY;
    (void)snprintf(ret->bucket, sizeof(ret->bucket), "%s", m->options->bucket);
    (void)snprintf(ret->directory, sizeof(ret->directory), "%s", m->options->directory);
    (void)snprintf(ret->node, sizeof(ret->node), "%s", client_address(m->client));
    (void)snprintf(ret->reason, sizeof(ret->reason), "%s", ret->is_passthrough ? "" : m->reason);
    ret->open_files = count_open(m);
    ret->memory.limit_bytes = holdings_limit();
    ret->memory.resident_bytes = holdings_resident();
    for (size_t i = 0; i < HOLDINGS_N; i++)
        ret->memory.held_bytes[i] = holdings_of((enum holding)i);
    stats_fill(m->stats, ret);
}
