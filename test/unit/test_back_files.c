/* layer: object */
/* threaded */
/* Write-back of files that are kept as they are: on the disk once, and read, sent and changed while their
 * writers have them open. */
#include "test_back_common.h"

static struct wire_attr stat_key(struct fixture *f, const char *key)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_stat_rep rep;
    assert_int_equal(object_stat(f->session, &req, f->arena, &rep, NULL), 0);
    return rep.attr;
}

/* Files of the store with so many bytes, by whatever names; links of one: of the first of them. */
static struct {
    uint64_t n;
    ino_t first, other;
} found_files;

static int count_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)path, (void)at;
    if (type != FTW_F || st->st_size != FILE_SIZE)
        return 0;
    found_files.n++;
    if (found_files.first == 0)
        found_files.first = st->st_ino;
    else if (st->st_ino != found_files.first)
        found_files.other = st->st_ino;
    return 0;
}

static bool is_one_file(struct fixture *f)
{
    found_files.n = 0;
    found_files.first = found_files.other = 0;
    assert_int_equal(nftw(f->disk, count_file, 16, FTW_PHYS), 0);
    return found_files.n > 0 && found_files.other == 0;
}

/* A file of FILE_SIZE bytes 'a' that was synced, and that its writer still has open. */
static void acknowledge(struct fixture *f, const char *key, struct wire_put_open_rep *ret)
{
    assert_int_equal(stage(f, key, ret), 0);
    fill_file(ret->fd, 'a');
    assert_int_equal(commit_file(f, ret->handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
}

/* What a mount wrote is on the disk once, under its old name, the new one after a rename, and in the cache
 * when the origin has it; it has one ETag, which is no MD5, until then, and is open by its descriptor. */
static void test_a_file_is_on_the_disk_once(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_file(f, "tmp", 'a'), 0);
    assert_true(is_one_file(f));
    struct slice etag = stat_key(f, "tmp").etag;
    assert_true(slice_ends(etag, SLICE_LIT("-1")));
    struct wire_copy_req move = {
        .bucket = SLICE_LIT("data"), .from = SLICE_LIT("tmp"), .to = SLICE_LIT("k"), .flags = WIRE_MOVE};
    struct wire_copy_rep moved;
    assert_int_equal(object_copy(f->session, &move, f->arena, &moved, NULL), 0);
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file(f));
    struct wire_open_req open = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .via = WIRE_VIA_MOUNT};
    struct wire_open_rep o;
    assert_int_equal(object_open(f->session, &open, f->arena, &o, NULL), 0);
    assert_true(o.state == WIRE_COMPLETE && o.fd >= 0 && o.attr.size_bytes == FILE_SIZE);
    drop_node(f);
    open_node(f);
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file(f));
    assert_int_equal(look(f, "k"), 'a');
    assert_int_equal(open_key(f, "tmp"), -ENOENT);
    flush(f);
    assert_true(is_one_file(f));
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_int_equal(look(f, "k"), 'a');
    struct wire_explain_req explain = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
    struct wire_explain_rep said;
    assert_int_equal(object_explain(f->session, &explain, f->arena, &said, NULL), 0);
    assert_true(slice_find_slice(said.json, SLICE_LIT("\"complete\":true")) >= 0);
    fixture_free(f);
}

/* It is renamed before its writer has closed it: that copies no byte either. */
static void test_a_file_is_renamed_while_it_is_open(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "tmp", &o);
    struct wire_copy_req move = {
        .bucket = SLICE_LIT("data"), .from = SLICE_LIT("tmp"), .to = SLICE_LIT("k"), .flags = WIRE_MOVE};
    struct wire_copy_rep moved;
    assert_int_equal(object_copy(f->session, &move, f->arena, &moved, NULL), 0);
    assert_true(is_one_file(f));
    abort_file(f, o.handle); /* as a mount does, whose file has another name now */
    assert_int_equal(look(f, "k"), 'a');
    assert_int_equal(open_key(f, "tmp"), -ENOENT);
    assert_true(is_one_file(f));
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_int_equal(origin_look(f, "tmp"), 0);
    fixture_free(f);
}

/* Who reads a file that its writer still has open gets bytes that stay as they are, whatever the writer does
 * next; what is written then is seen when it is committed. */
static void test_a_reader_of_an_open_file(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    struct slice etag = stat_key(f, "k").etag;
    assert_int_equal(look(f, "k"), 'a');
    fill_file(o.fd, 'b');
    assert_int_equal(look(f, "k"), 'a');
    assert_true(slice_eq(stat_key(f, "k").etag, etag));
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    assert_false(slice_eq(stat_key(f, "k").etag, etag));
    fill_file(o.fd, 'c');
    assert_int_equal(look(f, "k"), 'b');
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_UNMAPPED), 0);
    assert_int_equal(look(f, "k"), 'c');
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'c');
    assert_int_equal(look(f, "k"), 'c');
    fixture_free(f);
}

/* What was acknowledged is not there any more, because the writer cut the file: the version has the bytes
 * that are there, and another ETag. */
static void test_a_reader_of_a_file_that_was_cut(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    struct slice etag = stat_key(f, "k").etag;
    assert_int_equal(ftruncate(o.fd, 100), 0);
    assert_int_equal(look(f, "k"), 'a');
    assert_true(stat_key(f, "k").size_bytes == 100 && !slice_eq(stat_key(f, "k").etag, etag));
    abort_file(f, o.handle);
    assert_int_equal(look(f, "k"), 'a');
    fixture_free(f);
}

/* Cut to nothing, and its writer is gone. */
static void test_a_file_that_was_emptied(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    assert_int_equal(ftruncate(o.fd, 0), 0);
    abort_file(f, o.handle);
    flush(f);
    struct stat st;
    assert_int_equal(stat(arena_printf(f->arena, "%s/k", f->origin), &st), 0);
    assert_int_equal(st.st_size, 0);
    fixture_free(f);
}

/* A writer that has gone on after its fsync: the origin gets nothing that was not acknowledged, and status
 * says why. */
static void test_a_file_that_is_written_on_is_not_sent(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    struct wire_flush_req req = {.bucket = SLICE_LIT("data")};
    struct wire_flush_rep rep = {0};
    acknowledge(f, "k", &o);
    fill_file(o.fd, 'b');
    for (int i = 0; i < 60000 && rep.failing == 0; i++) {
        assert_int_equal(object_flush(f->session, &req, f->arena, &rep, NULL), 0);
        assert_int_equal(rep.objects, 1);
        sys->sleep_ns(1000000);
        arena_clear(f->arena);
    }
    assert_int_equal(rep.failing, 1);
    assert_int_equal(origin_look(f, "k"), 0);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'b');
    abort_file(f, o.handle);
    fixture_free(f);
}

/* The node is killed while a file is open that outlives it, as a mount's does: what was acknowledged is
 * there, and what is written through it afterwards changes nothing of what was read or sent. */
static void test_a_file_that_is_open_over_a_kill(void **state)
{
    (void)state;
    for (int read_first = 0; read_first < 2; read_first++) {
        struct fixture *f = fixture_new();
        struct wire_put_open_rep o;
        assert_int_equal(stage(f, "k", &o), 0);
        int fd = dup(o.fd);
        fill_file(fd, 'a');
        assert_int_equal(commit_file(f, o.handle, FILE_SIZE, WIRE_KEEP | WIRE_UNMAPPED), 0);
        drop_node(f);
        open_node(f);
        if (read_first)
            assert_int_equal(look(f, "k"), 'a');
        else
            flush(f); /* after the moment for which the sender waits for it to be closed */
        fill_file(fd, 'b');
        assert_int_equal(look(f, "k"), 'a');
        flush(f);
        assert_int_equal(origin_look(f, "k"), 'a');
        (void)close(fd);
        fixture_free(f);
    }
}

/* Its writer was killed, and had appended more than was acknowledged: that goes. */
static void test_a_file_whose_writer_was_killed(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, "write_delay=1h\n");
    acknowledge(f, "k", &o);
    struct slice etag = stat_key(f, "k").etag;
    assert_int_equal(pwrite(o.fd, "b", 1, FILE_SIZE), 1);
    abort_file(f, o.handle);
    assert_int_equal(look(f, "k"), 'a');
    assert_true(slice_eq(stat_key(f, "k").etag, etag) && is_one_file(f));
    flush(f);
    struct stat st;
    assert_int_equal(stat(arena_printf(f->arena, "%s/k", f->origin), &st), 0);
    assert_int_equal(st.st_size, FILE_SIZE);
    fixture_free(f);
}

static atomic_uint n_notes, n_lost_notes;

/* Records that say that their version was sent, of those with a tag. */
static void look_at_notes(const struct kv_txn *t, enum kv_commit kind)
{
    struct back_record r;
    struct kv_op op;
    size_t pos = 0;
    while (kv_txn_next(t, &pos, &op)) {
        bool is_put = op.kind == KV_OP_PUT || op.kind == KV_OP_PUT_PLAIN;
        if (!is_put || !slice_starts(op.key, SLICE_LIT("d/")) || back_record_decode(op.value, &r) < 0)
            continue;
        bool is_note = r.has_tag && back_record_was_sent(&r);
        atomic_fetch_add(&n_notes, is_note);
        atomic_fetch_add(&n_lost_notes, is_note && kind != KV_DURABLE);
    }
}

/* A version whose MD5 was not known is known again at the origin by the note that it was sent: power loss
 * must not take that, or our own object would be somebody else's. */
static void test_the_note_that_it_was_sent_is_durable(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    set_bucket(f, "write_delay=1h\n");
    assert_int_equal(put_file(f, "k", 'a'), 0);
    atomic_store(&f->kv.look, look_at_notes);
    flush(f);
    assert_int_equal(origin_look(f, "k"), 'a');
    fixture_free(f);
    assert_true(atomic_load(&n_notes) > 0);
    assert_int_equal(atomic_load(&n_lost_notes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_on_the_disk_once),
        cmocka_unit_test(test_a_file_is_renamed_while_it_is_open),
        cmocka_unit_test(test_a_reader_of_an_open_file),
        cmocka_unit_test(test_a_reader_of_a_file_that_was_cut),
        cmocka_unit_test(test_a_file_that_was_emptied),
        cmocka_unit_test(test_a_file_that_is_written_on_is_not_sent),
        cmocka_unit_test(test_a_file_that_is_open_over_a_kill),
        cmocka_unit_test(test_a_file_whose_writer_was_killed),
        cmocka_unit_test(test_the_note_that_it_was_sent_is_durable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
