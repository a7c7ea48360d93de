/*
 * The card's sections on generation defaults and on validation. See pkg_card_priv.h.
 *
 * Both are made from JSON that nobody need have checked: each value is looked at by kind, lists are cut, and texts go
 * out as code.
 */
#include "package/pkg_card_priv.h"
#include "package/pkg_check.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_LISTED = 16, MAX_LAYERS = 16 };

/* jansson iterates over non-const objects only; nothing is changed. */
static json_t *readable(const json_t *v) {
    return (json_t *)(uintptr_t)v;
}

static const char *text_at(const json_t *obj, const char *key) {
    return json_string_value(json_object_get(obj, key));
}

/* ", what `text`" */
static void put_text(struct pkg_card_md *md, const json_t *obj, const char *key, const char *what) {
    const char *text = text_at(obj, key);
    if (!text) return;
    pkg_card_md_put(md, ", %s ", what);
    pkg_card_md_code(md, text);
}

static void put_number(struct pkg_card_md *md, const json_t *obj, const char *key, const char *what) {
    const json_t *v = json_object_get(obj, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return;
    pkg_card_md_put(md, ", %s ", what);
    pkg_card_md_number(md, (uint64_t)json_integer_value(v));
}

/* A scalar of any kind; false when it is none. */
static bool put_scalar(struct pkg_card_md *md, const json_t *v) {
    if (json_is_string(v))
        pkg_card_md_code(md, json_string_value(v));
    else if (json_is_integer(v))
        pkg_card_md_put(md, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_boolean(v))
        pkg_card_md_put(md, "%s", json_is_true(v) ? "true" : "false");
    else if (json_is_real(v))
        pkg_card_md_put(md, "%g", json_real_value(v));
    else
        return false;
    return true;
}

/* "- what: `key` value, `key` value" of an object's scalars; nothing when there are none. */
static void put_pairs(struct pkg_card_md *md, const char *what, const json_t *obj, const char *skip) {
    const char *key;
    json_t *v;
    size_t n = 0;
    json_object_foreach(readable(obj), key, v) {
        if ((skip && strcmp(key, skip) == 0) || json_is_object(v) || json_is_array(v) || json_is_null(v)) continue;
        if (++n > MAX_LISTED) break;
        if (n == 1)
            pkg_card_md_put(md, "- %s: ", what);
        else
            pkg_card_md_put(md, ", ");
        pkg_card_md_code(md, key);
        pkg_card_md_put(md, " ");
        put_scalar(md, v);
    }
    if (n > MAX_LISTED) pkg_card_md_put(md, ", ...");
    if (n) pkg_card_md_put(md, "\n");
}

static void put_policy(struct pkg_card_md *md, const json_t *generation) {
    const json_t *policy = json_object_get(generation, "policy");
    const char *profile = text_at(policy, "profile");
    if (profile) {
        pkg_card_md_put(md, "- Policy profile: ");
        pkg_card_md_code(md, profile);
        pkg_card_md_put(md, "\n");
    }
    put_pairs(md, "Policy", policy, "profile");
    put_pairs(md, "Experimental policy", json_object_get(policy, "experimental"), NULL);
    put_pairs(md, "Thresholds", json_object_get(generation, "thresholds"), NULL);
}

/* A strategy or a proposer: its type, and what is known of that kind. */
static void put_source(struct pkg_card_md *md, const char *what, const char *name, const json_t *v) {
    const json_t *layers = json_object_get(v, "layer_indices");
    const char *type = text_at(v, "type");
    pkg_card_md_put(md, "- %s ", what);
    pkg_card_md_code(md, name);
    pkg_card_md_put(md, ": ");
    if (type)
        pkg_card_md_code(md, type);
    else
        pkg_card_md_put(md, "no type of its own");
    put_number(md, v, "prediction_depth", "prediction depth");
    for (size_t i = 0; i < json_array_size(layers) && i <= MAX_LAYERS; i++) {
        const json_t *index = json_array_get(layers, i);
        pkg_card_md_put(md, i == 0 ? json_array_size(layers) == 1 ? ", layer " : ", layers " : ", ");
        if (i == MAX_LAYERS || !json_is_integer(index))
            pkg_card_md_put(md, "...");
        else
            put_scalar(md, index);
    }
    put_number(md, v, "ngram_min", "matches from");
    put_number(md, v, "ngram_max", "to");
    put_number(md, v, "max_proposal_tokens", "tokens proposed at most");
    put_text(md, v, "proposer", "proposer");
    put_text(md, v, "primary", "primary");
    put_text(md, v, "extender", "extender");
    put_text(md, v, "draft_model", "draft model");
    put_text(md, json_object_get(v, "window_policy"), "default", "window policy");
    put_number(md, json_object_get(v, "window_policy"), "max_window", "window at most");
    pkg_card_md_put(md, "\n");
}

static void put_sources(struct pkg_card_md *md, const char *what, const json_t *map) {
    const char *name;
    json_t *v;
    size_t n = 0;
    json_object_foreach(readable(map), name, v) {
        if (n++ == MAX_LISTED) pkg_card_md_put(md, "- ... and more, listed in the manifest\n");
        if (n <= MAX_LISTED) put_source(md, what, name, v);
    }
}

void pkg_card_generation(struct pkg_card_md *md, const json_t *generation) {
    const json_t *spec = json_object_get(generation, "speculative_decoding");
    const char *chosen = text_at(spec, "default");
    const char *profile =
        text_at(json_object_get(json_object_get(generation, "request_defaults"), "selection"), "default");
    pkg_card_md_put(md, "\n## Generation defaults\n\n");
    if (json_object_size(generation) == 0) {
        pkg_card_md_put(md, "The package declares none.\n");
        return;
    }
    put_policy(md, generation);
    if (profile) {
        pkg_card_md_put(md, "- Request profile: ");
        pkg_card_md_code(md, profile);
        pkg_card_md_put(md, "\n");
    }
    if (chosen) {
        pkg_card_md_put(md, "- Speculative decoding, default strategy: ");
        pkg_card_md_code(md, chosen);
        pkg_card_md_put(md, "\n");
    }
    put_sources(md, "Strategy", json_object_get(spec, "strategies"));
    put_sources(md, "Proposer", json_object_get(spec, "proposers"));
}

/* ---- validation ---- */

/* " what: 12.", nothing when it is 0 and `always` is not wanted. */
static void put_count(struct pkg_card_md *md, const json_t *v, const char *key, const char *what, bool always) {
    const json_t *count = json_object_get(v, key);
    if (!json_is_integer(count) || json_integer_value(count) < 0) return;
    if (json_integer_value(count) == 0 && !always) return;
    pkg_card_md_put(md, " %s: ", what);
    pkg_card_md_number(md, (uint64_t)json_integer_value(count));
    pkg_card_md_put(md, ".");
}

/* What was run, with the name of the source when it can stand in a command line; by which program, and when. */
static void put_command(struct pkg_card_md *md, const json_t *v) {
    const char *command = text_at(v, "command");
    const char *source = text_at(json_array_get(json_object_get(v, "source_files"), 0), "path");
    const json_t *at = json_object_get(v, "created_at_unix_secs");
    bool named = source && pkg_card_md_is_name(source, strlen(source));
    if (!command) return;
    pkg_card_md_put(md, "Command: ");
    if (pkg_card_md_is_name(command, strlen(command)))
        pkg_card_md_put(md, "`%s %s .`", command, named ? source : "SOURCE.gguf");
    else
        pkg_card_md_code(md, command);
    put_text(md, v, "tool", "by");
    if (json_is_integer(at) && json_integer_value(at) > 0) {
        pkg_card_md_put(md, ", ");
        pkg_card_md_date(md, (uint64_t)json_integer_value(at));
    }
    pkg_card_md_put(md, "\n\n");
}

void pkg_card_validation(struct pkg_card_md *md, const struct pkg_manifest *m, const json_t *validation) {
    const json_t *valid = json_object_get(validation, "valid");
    const char *manifest = text_at(validation, "manifest_sha256");
    pkg_card_md_put(md, "\n## Validation\n\n");
    if (!json_is_boolean(valid)) {
        pkg_card_md_put(md,
                        "No result was recorded with this package. The command above compares it with its source.\n");
        return;
    }
    if (!manifest || strcmp(manifest, m->sha256) != 0) {
        pkg_card_md_put(md, "No result for this package: `%s` is about another manifest.\n", PKG_CHECK_VALIDATION_FILE);
        return;
    }
    put_command(md, validation);
    pkg_card_md_put(md, "Result: %s.", json_is_true(valid) ? "valid" : "NOT valid");
    put_count(md, validation, "compared_tensor_count", "Tensors compared with the source byte for byte", true);
    put_count(md, validation, "checked_artifact_count", "Files", true);
    put_count(md, validation, "checked_projector_count", "Projectors", false);
    put_count(md, validation, "error_count", "Errors", true);
    put_count(md, validation, "issue_count", "Errors, warnings and notes", false);
    pkg_card_md_put(md, " All of it is in `%s`.\n", PKG_CHECK_VALIDATION_FILE);
}
