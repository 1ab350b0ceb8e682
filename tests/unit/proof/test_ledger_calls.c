/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger alone. Its digests are those of whole parameters, however these are cut and wherever they rest. A line is
 * in the file whole, or not there. Whatever fails is said, and leaves nothing open. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "ledger_stage.h"

/* ---- digests ---- */

static tess_status step_rank(int32_t r) {
    const tess__executor compute = { .engine = &t }, lane = { .lane = the_lane };
    t.comms.world.rank = r;
    t.comms.shard_rank = r % world.shards;
    t.comms.replica_rank = r / world.shards;
    if (r || !t.proof || t.proof->fd < 0)
        memset(world.room[r > 0], 0x5a, sizeof world.room[0]);
    TRY(tess__proof_pass(&t, TESS_PASS_TRAIN));
    for (int32_t g = 0; g < GROUPS; g++)
        if (world.groups[g].trainable)
            TRY(tess__proof_gradient(&t, g, drawn(2) ? &lane : &compute));
    t.step.steps_done++;
    tess_status s = tess__proof_step(&t);
    t.step.steps_done -= r > 0;
    size_t planned = LEDGER_UNITS * (KINDS * 24 + 3) + 256; /* what a plan has for its units */
    planned += t.plan.setup.env.mem == TESS_MEM_HOST && !t.plan.layout.store_align ? 0 : TESS__PROOF_CHUNK;
    const char *rest = world.room[r > 0] + planned;
    assert_int_equal(*rest, 0x5a);
    assert_memory_equal(rest, rest + 1, sizeof world.room[0] - planned - 1);
    return s;
}

static tess_status step_all(void) {
    memset(world.total, 0, sizeof world.total);
    for (int32_t r = t.plan.setup.nranks; r-- > 0;)
        TRY(step_rank(r));
    return TESS_OK;
}

static void expect_line(char *want, const uint64_t *sums, int again) {
    char *at = want + sprintf(want, "{\"type\":\"step\",\"step\":%d%s,\"root\":\"%016llx\",\"digests\":[",
                              (int)t.step.steps_done, again ? ",\"again\":true" : "",
                              (unsigned long long)root_of(sums, LEDGER_UNITS * KINDS));
    for (int u = 0; u < LEDGER_UNITS; u++) {
        at += sprintf(at, "%s\"", u ? "," : "");
        for (int k = 0; k < KINDS; k++)
            at += sprintf(at, "%016llx", (unsigned long long)sums[u * KINDS + k]);
        at += sprintf(at, "\"");
    }
    sprintf(at, "]}");
}

static void reckon(uint64_t want[LEDGER_UNITS * KINDS]) {
    memset(want, 0, LEDGER_UNITS * KINDS * sizeof *want);
    for (int32_t i = 0; i < PARAMS; i++)
        for (int k = 0; k < KINDS; k++)
            if (i != 4 && i != 7)
                want[unit_of(world.params[i].scope) * KINDS + k] += digest_of(&world.params[i], k);
}

static void test_ledger_calls__digests_are_of_whole_parameters_however_they_are_cut(void **state) {
    (void)state;
    uint64_t copies = 0;
    for (unsigned seed = 0; seed < 32; seed++) {
        uint64_t want[LEDGER_UNITS * KINDS];
        char line[4096];
        draw_world(seed, 1 + (int32_t)seed % 4, 1 + (int32_t)seed / 4 % 3, seed % 2 == 0);
        new_file();
        (void)close(0); /* as a service may be started: the ledger is the file of this number */
        reckon(want);
        for (int step = 0; step < 3; step++) {
            assert_int_equal(step_all(), TESS_OK);
            assert_int_equal(world.n_total, LEDGER_UNITS * KINDS);
            assert_memory_equal(world.total, want, sizeof want);
        }
        tess__proof_end(&t);
        tess__chain_read_info info = read_ledger(path);
        assert_true(file.lines == 5 && !info.cut && disk.opened == 0 && t.proof == NULL);
        t.step.steps_done = 2;
        expect_line(line, want, 0);
        assert_string_equal(file.text[2], line);
        assert_string_equal(file.text[4], "{\"type\":\"end\",\"step\":3}");
        copies += world.copies;
        remove(path);
        drop_world();
    }
    assert_true(copies > 200);
}

/* ---- the disk ---- */

static void script(int n, const int *steps) {
    disk.scripted = n;
    disk.writes = disk.cuts = 0;
    for (int i = 0; i < n; i++)
        disk.script[i] = steps[i];
}

static char *content(int fd, size_t *bytes) {
    static char all[4096];
    *bytes = (size_t)pread(fd, all, sizeof all - 1, 0);
    all[*bytes] = 0;
    return all;
}

/* Each of 90 bytes may be the last one before the disk is full; what was there stays, and nothing follows it. */
static void test_ledger_calls__a_line_is_in_the_file_whole_or_not_there(void **state) {
    (void)state;
    static const char first[] = "{\"type\":\"end\",\"step\":1,\"chain\":\"b61350ec50305bae\"}\n";
    for (int most = 0; most < 90; most++)
        for (int fails = 0; fails < 2; fails++) {
            const int parts[] = { 3, -EINTR, 0, most ? most : -EINTR, 1, fails ? -ENOSPC : -EINTR },
                      full[] = { -ENOSPC };
            char line[128] = "{\"type\":\"end\",\"step\":1";
            size_t bytes, whole = sizeof first - 1;
            memset(&disk, 0, sizeof disk);
            (void)close(0);
            tess__proof p = { .fd = memfd_create("ledger", 0), .chain = tess__chain_start() };
            assert_true(p.fd >= 0);
            append(&p, line, strlen(line));
            assert_string_equal(content(p.fd, &bytes), first);
            assert_true(bytes == whole && p.bytes == whole && p.chain == 0xb61350ec50305baeu && disk.writes == 1);
            const uint64_t chain = p.chain;
            sprintf(line, "{\"type\":\"checkpoint\",\"step\":%d,\"path\":\"/a/b/c/d/e/f/g\"", most);
            int length = (int)strlen(line) + TESS__CHAIN_TAIL, fits = 3 + most + 1 >= length;
            script(6, parts);
            append(&p, line, strlen(line));
            if (!fails || fits) {
                assert_int_equal(p.failed, 0);
                assert_int_equal(p.bytes, whole + (size_t)length);
                assert_true(p.chain != chain && disk.cuts == 0);
                assert_memory_equal(content(p.fd, &bytes) + whole, line, (size_t)length);
                script(1, full);
                append(&p, line, 20); /* nothing of it is there: nothing to take back */
                assert_int_equal(disk.cuts, 0);
                assert_int_equal(p.bytes, whole + (size_t)length);
            } else {
                assert_true(p.bytes == whole && p.chain == chain && disk.cuts == 1);
            }
            assert_int_equal(p.failed, ENOSPC);
            (void)content(p.fd, &bytes);
            assert_int_equal(bytes, p.bytes);
            script(0, NULL);
            append(&p, line, 20);
            assert_true(disk.writes == 0 && disk.cuts == 0 && disk.depth == 0);
            close(p.fd);
        }
}

static void test_ledger_calls__what_the_disk_refuses_is_said_once_and_the_run_goes_on(void **state) {
    (void)state;
    static const int full[] = { 7, -ENOSPC };
    char want[256];
    draw_world(1, 1, 1, 0);
    new_file();
    assert_int_equal(step_all(), TESS_OK);
    assert_int_equal(step_all(), TESS_OK);
    script(2, full); /* the second line, which is written when the third is due */
    for (int more = 0; more < 3; more++)
        assert_int_equal(step_all(), TESS_OK);
    snprintf(want, sizeof want, "TESSERA_LEDGER=%s: %s; it ends with step 2, and the run goes on", path,
             strerror(ENOSPC));
    expect_logged(1, TESS_LOG_WARNING, want);
    assert_true(disk.writes == 2 && disk.cuts == 1 && disk.ticket == 2); /* no more is handed over */
    tess__proof_saved(t.proof, "/nowhere", 4);
    tess__proof_end(&t);
    assert_true(disk.writes == 2 && disk.opened == 0);
    assert_int_equal(read_ledger(path).cut, 0);
    assert_int_equal(file.lines, 2);
    new_file();
    assert_int_equal(step_all(), TESS_OK);
    script(2, full);
    disk.cut_error = 1; /* nor can it be taken back */
    for (int more = 0; more < 2; more++)
        assert_int_equal(step_all(), TESS_OK);
    assert_non_null(strstr(logged.text, strerror(EIO)));
    assert_int_equal(logged.n, 1);
    disk.waited = TESS_E_LOST;
    assert_int_equal(step_all(), TESS_E_LOST);
    disk.waited = TESS_OK;
    tess__proof_end(&t);
    assert_int_equal(read_ledger(path).cut, 1); /* which the run that goes on takes away, if it can */
    assert_int_equal(step_rank(0), TESS_E_DATA);
    snprintf(want, sizeof want, "%s: %s", path, strerror(EIO));
    assert_string_equal(tess_last_error(), want);
    assert_int_equal(disk.opened, 0);
    disk.cut_error = 0;
    assert_int_equal(step_rank(0), TESS_OK);
    tess__proof_end(&t);
    assert_int_equal(read_ledger(path).cut, 0);
    assert_int_equal(file.lines, 4); /* the first life's beginning; another one, its step and its end */
    remove(path);
    drop_world();
}

/* ---- lines ---- */

static uint64_t hash_of_model(void) {
    uint64_t hash = TESS__HASH_START;
    for (int32_t i = 0; i < PARAMS; i++)
        if (i != 4 && i != 7) /* by name and size, FNV-1a */
            hash = tess__hash_u64(tess__hash_text(hash, world.names[i]), world.params[i].elems);
    return hash;
}

static void set_texts(void) {
    static const uint32_t kinds[] = { TESS_KIND_DEVICE, TESS_KIND_COMM, TESS_KIND_OFFLOAD, TESS_KIND_PRECISION,
                                      TESS_KIND_WRAP };
    static char *const texts[] = { "cpu \"x\"", "shm", "none", "bf16", "size:3" };
    for (int i = 0; i < 5; i++)
        t.selection.text[kinds[i]] = texts[i];
    t.settings.strategy = (char *)"hybrid:2";
    t.settings.optimizer = (char *)"adamw";
    t.plan.setup.threads = 2;
    t.plan.setup.accum = 3;
    t.plan.setup.deterministic = 1;
    t.plan.setup.ledger_every = 2;
}

static void test_ledger_calls__the_first_line_says_what_runs_and_from_where(void **state) {
    (void)state;
    char want[1024];
    draw_world(3, 2, 1, 0);
    new_file();
    set_texts();
    t.step.steps_done = 7;
    assert_int_equal(tess_proof_words(&t, "seed=2"), TESS_OK);
    assert_int_equal(tess_proof_words(&t, "seed=1 lr=\"2\""), TESS_OK);
    assert_int_equal(tess__proof_loaded(&t, "/no/such", 5), TESS_OK);
    assert_int_equal(tess__proof_loaded(&t, "/..", 7), TESS_OK);
    assert_int_equal(step_rank(0), TESS_OK);
    tess__proof_saved(t.proof, "/..", 8);
    tess__proof_saved(t.proof, "/no/such", 9);
    disk.memory = 1;
    tess__proof_saved(t.proof, "/no/such", 10);
    disk.memory = 0, disk.close_error = 1;
    tess__proof_saved(t.proof, "/no/such", 11);
    disk.close_error = 0;
    t.error = TESS_E_LOST; /* which writes no end */
    tess__proof_end(&t);
    read_ledger(path);
    snprintf(
        want, sizeof want,
        "{\"type\":\"begin\",\"format\":1,\"step\":7,\"every\":2,\"model\":\"%016llx\",\"version\":\"9.8\",\"ranks\":2,"
        "\"microbatches\":6,\"deterministic\":1,\"threads\":2,\"isa\":\"%s\",\"strategy\":\"hybrid:2\","
        "\"optimizer\":\"adamw\",\"device\":\"cpu \\\"x\\\"\",\"comm\":\"shm\",\"offload\":\"none\",\"precision\":"
        "\"bf16\",\"wrap\":\"size:3\",\"words\":\"seed=1 lr=\\\"2\\\"\",\"from\":\"/\",\"kinds\":[\"parameter\","
        "\"gradient\",\"m\",\"v\"],\"units\":[\"a\",\"b\",\"d\",\"f\"]}",
        (unsigned long long)hash_of_model(), tess__isa_name(tess__isa()));
    assert_string_equal(file.text[0], want);
    assert_string_equal(file.text[1], "{\"type\":\"checkpoint\",\"step\":8,\"path\":\"/\"}");
    assert_string_equal(file.text[2], "{\"type\":\"checkpoint\",\"step\":9,\"path\":\"/no/such\"}");
    assert_int_equal(strncmp(file.text[3], "{\"type\":\"step\",\"step\":8,", 24), 0);
    assert_int_equal(file.lines, 4);
    t.error = TESS_OK; /* a run that goes on elsewhere than it loaded, without words */
    assert_int_equal(tess__proof_loaded(&t, "/tmp", 7), TESS_OK);
    assert_int_equal(tess_proof_words(&t, NULL), TESS_OK);
    assert_int_equal(step_rank(0), TESS_OK);
    tess__proof_end(&t);
    read_ledger(path);
    assert_non_null(strstr(file.text[4], "\"words\":\"\",\"kinds\""));
    assert_string_equal(file.text[5], "{\"type\":\"end\",\"step\":9}");
    remove(path);
    drop_world();
}

static void test_ledger_calls__steps_that_are_due_and_steps_that_come_again(void **state) {
    (void)state;
    static const char *const says[] = { "\"step\":3,\"root\"",
                                        "\"step\":6,\"skipped\":true,\"root\"",
                                        "\"type\":\"end\"",
                                        "\"type\":\"begin\"",
                                        "\"step\":3,\"again\":true,\"root\"",
                                        "\"step\":6,\"again\":true,\"skipped\":true,\"root\"",
                                        "\"step\":9,\"root\"" };
    uint64_t want[LEDGER_UNITS * KINDS];
    draw_world(5, 2, 2, 0);
    new_file();
    t.plan.setup.ledger_every = 3;
    for (int life = 0; life < 2; life++) {
        for (t.step.steps_done = 0; t.step.steps_done < (life ? 9 : 7);) {
            uint64_t n = t.step.steps_done + 1;
            t.step.skips = n == 6;
            world.n_total = 0;
            assert_int_equal(step_all(), TESS_OK);
            assert_int_equal(world.n_total, n % 3 ? 0 : LEDGER_UNITS * KINDS);
            reckon(want);
            assert_true(n % 3 || memcmp(world.total, want, sizeof want) == 0);
        }
        tess__proof_end(&t);
    }
    read_ledger(path);
    assert_int_equal(file.lines, 9);
    for (int i = 0; i < 7; i++)
        assert_non_null(strstr(file.text[1 + i], says[i]));
    remove(path);
    drop_world();
}

/* Also within one life, whose steps an image took back. */
static void test_ledger_calls__a_run_goes_on_behind_what_is_there(void **state) {
    (void)state;
    static const int full[] = { 5, -ENOSPC };
    draw_world(7, 1, 1, 0);
    new_file();
    for (int n = 0; n < 7; n++) { /* steps 1 2 2 3, and then 3 4 5 of another life, the last of which finds no room */
        t.step.steps_done -= n == 2 || n == 4;
        if (n == 4)
            tess__proof_end(&t);
        assert_int_equal(step_all(), TESS_OK);
    }
    const size_t bytes = t.proof->bytes;
    script(2, full);
    tess__proof_end(&t);
    said_so_far[0] = 0;
    assert_true(disk.cuts == 1 && !read_ledger(path).cut && read_ledger(path).bytes == bytes);
    assert_int_equal(file.lines, 9);
    for (int i = 0; i < file.lines; i++)
        say("%.6s%d%s ", file.text[i] + 9, (int)tess__chain_number(file.text[i], "step"),
            strstr(file.text[i], "again") ? "!" : "");
    expect_said("begin\"0 step\",1 step\",2 step\",2! step\",3 end\",\"2 begin\"2 step\",3! step\",4 ");
    remove(path);
    drop_world();
}

static void refused_going_on(const char *why) {
    char want[512];
    snprintf(want, sizeof want, "%s: line 1: it is the ledger of another %s", path, why);
    assert_int_equal(step_rank(0), TESS_E_DATA);
    assert_string_equal(tess_last_error(), want);
    t.error = TESS_E_DATA;
    tess__proof_end(&t);
    t.error = TESS_OK;
    assert_int_equal(disk.opened, 0);
}

static void test_ledger_calls__another_runs_ledger_is_not_gone_on_with(void **state) {
    (void)state;
    draw_world(9, 1, 1, 0);
    new_file();
    assert_int_equal(tess_proof_words(&t, "lr=2 seed=1"), TESS_OK);
    assert_int_equal(step_rank(0), TESS_OK);
    tess__proof_end(&t);
    assert_int_equal(tess_proof_words(&t, "lr=3 seed=1"), TESS_OK);
    refused_going_on("run, with lr=2, and this one has lr=3; give another file (TESSERA_LEDGER)");
    world.params[3].elems++;
    refused_going_on("model; give another file");
    world.params[3].elems--;
    world.names[3][0] = 'q';
    refused_going_on("model; give another file");
    world.names[3][0] = 'p';
    world.params[4].elems++, world.names[7][0] = 'q'; /* buffers and aliases have no digests */
    assert_int_equal(step_rank(0), TESS_OK);          /* nor has it words: it may be the same */
    tess__proof_end(&t);
    assert_int_equal(tess_proof_words(&t, "lr=2 steps=7"), TESS_OK);
    assert_int_equal(step_rank(0), TESS_OK);
    tess__proof_end(&t);
    remove(path);
    drop_world();
}

static void test_ledger_calls__a_root_hashes_all_digests_in_their_order(void **state) {
    (void)state;
    static const uint64_t three[] = { 1, 2, 3 }, zeros[] = { 0, 0 }, most[] = { UINT64_MAX };
    assert_true(root_of(three, 0) == 0);
    /* Reckoned by hand: splitmix64's finaliser over each sum and the golden ratio. */
    assert_true(root_of(three, 3) == 0x6ae515c1c0ac7e37u);
    assert_true(root_of(zeros, 2) == 0xa706dd2f4d197e6fu);
    assert_true(root_of(most, 1) == 0xe4d971771b652c20u);
}

/* ---- what is done when ---- */

static void test_ledger_calls__each_option_has_its_calls(void **state) {
    (void)state;
    const tess__executor lane = { .lane = the_lane }, compute = { .engine = &t };
    const tess__instr in = { .index = 4 };
    const tess__event event = { .scope = 3 };
    static tess__plugin device = { .name = "gpu" };
    draw_world(1, 1, 1, 0);
    t.plan.setup.ledger_every = 0;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess__proof_loaded(&t, "/tmp", 3), TESS_OK);
    assert_int_equal(tess_proof_words(&t, "x=1"), TESS_OK);
    assert_int_equal(tess__proof_pass_end(&t), TESS_OK);
    assert_int_equal(tess__proof_rest(&t), TESS_OK);
    tess__proof_end(&t);
    t.settings.digests_rest = 1;
    assert_int_equal(tess__proof_rest(&t), TESS_OK);
    assert_null(t.proof);
    expect_said("");
    t.plan.setup.threads = 5;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_OK);
    expect_said("pool of 5; detail 1; check 0; check pass 0; ");
    assert_int_equal(tess__proof_rest(&t), TESS_OK);
    assert_int_equal(tess__proof_pass_end(&t), TESS_OK);
    assert_int_equal(tess__proof_gradient(&t, 1, &compute), TESS_OK);
    assert_int_equal(tess__proof_step(&t), TESS_OK);
    expect_said("check 1; take pass 0; check group 1; take 0; ");
    disk.rest = TESS_E_MISMATCH;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_MISMATCH);
    assert_int_equal(tess__proof_gradient(&t, 1, &compute), TESS_E_MISMATCH);
    assert_int_equal(tess__proof_rest(&t), TESS_E_MISMATCH);
    assert_int_equal(tess__proof_pass_end(&t), TESS_E_MISMATCH);
    assert_int_equal(tess__proof_step(&t), TESS_E_MISMATCH);
    expect_said("detail 1; check 0; check group 1; check 1; take pass 0; take 0; ");
    disk.rest = TESS_OK;
    assert_int_equal(tess__proof_instr(&t, &in) + tess__proof_event(&t, &event), TESS_OK);
    disk.checked = TESS_E_DATA;
    assert_int_equal(tess__proof_instr(&t, &in), TESS_E_DATA);
    assert_int_equal(tess__proof_event(&t, &event), TESS_E_DATA);
    disk.checked = TESS_OK;
    tess__proof_end(&t);
    expect_said("instr 4; event 3; instr 4; event 3; lane; rest ends; detail ends; pool ends; ");
    t.plan.setup.env.mem = TESS_MEM_CUDA;
    t.device.plugin = &device;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(),
                        "TESSERA_AT_REST_DIGESTS=1: device gpu has memory that the host does not read");
    tess__proof_end(&t);
    t.settings.digests_rest = 0, t.settings.detail = (char *)"/x", said_so_far[0] = 0, t.plan.setup.threads = 1;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_EVAL), TESS_OK);
    assert_int_equal(tess__proof_gradient(&t, 1, &compute), TESS_OK);
    assert_int_equal(tess__proof_pass_end(&t), TESS_OK);
    assert_int_equal(tess__proof_step(&t), TESS_OK);
    expect_said("detail 2; check group 1; ");
    assert_true(disk.opened == 0 && world.n_total == 0);
    tess__proof_end(&t);
    said_so_far[0] = 0, t.settings.detail = NULL, t.plan.setup.env.mem = TESS_MEM_HOST, t.plan.setup.ledger_every = 1;
    new_file();
    t.pass.microbatch = 1; /* not a step's first: the sums stay, and nothing is opened */
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_OK);
    t.pass.microbatch = 0;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_EVAL), TESS_OK);
    t.comms.world.rank = 1;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess__proof_loaded(&t, "/tmp", 3), TESS_OK);
    assert_int_equal(disk.opened, 0);
    t.comms.world.rank = 0;
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC), TESS_OK);
    assert_int_equal(disk.opened, 1);
    assert_int_equal(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_OK);
    expect_said("detail 1; detail 2; detail 1; detail 257; detail 1; ");
    assert_int_equal(tess__proof_gradient(&t, 1, &lane), TESS_OK);
    expect_said("check group 1; ");
    assert_int_equal(tess__proof_gradient(&t, 1, &compute), TESS_OK);
    expect_said("check group 1; sync 0; "); /* because the device may not be done */
    disk.sync = TESS_E_DEVICE;
    assert_int_equal(tess__proof_gradient(&t, 1, &compute), TESS_E_DEVICE);
    t.step.steps_done = 1;
    assert_int_equal(tess__proof_step(&t), TESS_E_DEVICE);
    disk.sync = TESS_OK, disk.sum = TESS_E_PEER;
    assert_int_equal(tess__proof_step(&t), TESS_E_PEER);
    assert_int_equal(disk.ticket, 0);
    t.settings.plan_only = 1;
    assert_int_equal(tess_proof_words(&t, "y=1"), TESS_OK);
    assert_null(t.proof->words);
    tess__proof_end(&t);
    remove(path);
    drop_world();
}

/* ---- what fails ---- */

static void expect_failed(tess_status s, tess_status want, const char *text) {
    assert_int_equal(s, want);
    assert_string_equal(tess_last_error(), text);
    t.error = s; /* so that no end is written */
    tess__proof_end(&t);
    assert_int_equal(disk.opened, 0);
    t.error = TESS_OK;
}

static void test_ledger_calls__what_fails_is_said_and_leaves_nothing_open(void **state) {
    (void)state;
    char want[256];
    draw_world(2, 1, 1, 0);
    new_file();
    set_texts();
    t.plan.setup.threads = 1;
    for (int n = 1; n <= 5; n++) { /* the ledger, its three tables and one that goes again */
        disk.memory = n;
        expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_NOMEM, "no memory for the ledger of digests");
    }
    disk.memory = 6;
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_NOMEM, "no memory for a line of the ledger");
    disk.close_error = 1;
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_NOMEM, "no memory for a line of the ledger");
    disk.close_error = 0;
    for (int n = 1; n <= 2; n++) {
        disk.memory = n;
        expect_failed(tess__proof_loaded(&t, "/tmp", 1), TESS_E_NOMEM, "no memory for the ledger of digests");
        disk.memory = n;
        expect_failed(tess_proof_words(&t, "x"), TESS_E_NOMEM, "no memory for the ledger of digests");
    }
    disk.memory = 0;
    disk.lane = TESS_E_DEVICE;
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_DEVICE, "no lane");
    disk.lane = TESS_OK;
    snprintf(want, sizeof want, "TESSERA_LEDGER=%s: another run writes it", path);
    disk.lock_error = 1;
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_DATA, want);
    disk.lock_error = 0;
    snprintf(want, sizeof want, "TESSERA_LEDGER=%s: it is no file that can be read again", path);
    disk.stat_error = 1;
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_DATA, want);
    disk.stat_error = 0;
    t.settings.ledger = (char *)"/no-such-folder/ledger";
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_DATA,
                  "TESSERA_LEDGER=/no-such-folder/ledger: No such file or directory");
    t.settings.ledger = (char *)"/dev/null";
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_DATA,
                  "TESSERA_LEDGER=/dev/null: it is no file that can be read again");
    t.settings.ledger = path;
    t.plan.setup.threads = 2, disk.pool = TESS_E_NOMEM;
    expect_failed(tess__proof_pass(&t, TESS_PASS_TRAIN), TESS_E_NOMEM, "no threads");
    disk.pool = TESS_OK;
    remove(path);
    drop_world();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_calls__digests_are_of_whole_parameters_however_they_are_cut),
        cmocka_unit_test(test_ledger_calls__a_line_is_in_the_file_whole_or_not_there),
        cmocka_unit_test(test_ledger_calls__what_the_disk_refuses_is_said_once_and_the_run_goes_on),
        cmocka_unit_test(test_ledger_calls__the_first_line_says_what_runs_and_from_where),
        cmocka_unit_test(test_ledger_calls__steps_that_are_due_and_steps_that_come_again),
        cmocka_unit_test(test_ledger_calls__a_run_goes_on_behind_what_is_there),
        cmocka_unit_test(test_ledger_calls__another_runs_ledger_is_not_gone_on_with),
        cmocka_unit_test(test_ledger_calls__a_root_hashes_all_digests_in_their_order),
        cmocka_unit_test(test_ledger_calls__each_option_has_its_calls),
        cmocka_unit_test(test_ledger_calls__what_fails_is_said_and_leaves_nothing_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
