/* The program `strata`: all commands. */
#include "cli/cli_main.h"
#include "model/model_backend.h"

static const struct cli_command commands[] = {
    {NULL, NULL, "Look at models and plan", false},
    {"inspect", cmd_inspect, "show what a GGUF file or a package holds", false},
    {"architectures", cmd_architectures, "list the architectures and types that can be run", false},
    {"plan", cmd_plan, "divide a model over stages, and show what each would load", false},
    {NULL, NULL, "Write", false},
    {"write-package", cmd_write_package, "cut a GGUF model into a layer package", false},
    {"write-stages", cmd_write_stages, "write one GGUF file for each stage", false},
    {"write", cmd_write, "write one layer range as a GGUF file", false},
    {"convert", cmd_convert, "turn a package of schema 1 into one of schema 2, or back", false},
    {"materialize", cmd_materialize, "merge a package's files for a layer range into one GGUF file", false},
    {NULL, NULL, "Check and sign", false},
    {"preflight", cmd_preflight, "check a package by itself: manifest, sizes, digests, fragments", false},
    {"validate-package", cmd_validate_package, "compare a package with its source model, byte for byte", false},
    {"validate", cmd_validate, "compare slices with their source model, byte for byte", false},
    {"sign", cmd_sign, "sign a package with a publisher's key", false},
    {"verify-signature", cmd_verify_signature, "tell who signed a package, and whether that holds", false},
    {"validate-glm-dsa-contract", cmd_validate_glm_dsa_contract, "check what the policy glm-dsa-v1 requires", false},
    {"repair-glm-dsa-generation-policy", cmd_repair_glm_dsa_generation_policy,
     "put that policy into a package's manifest", false},
    {NULL, NULL, "Run", false},
    {"run", cmd_run, "generate text in this process", true},
    {"serve", cmd_serve, "serve a package over stages as one OpenAI-compatible endpoint", false},
    {"stage", cmd_stage, "serve one layer range to a coordinator", true},
    {"key", cmd_key, "make this machine's key, show it, trust another machine's", false},
    {"tokenize", cmd_tokenize, "print the token ids of lines of text", false},
    {"logits", cmd_logits, "write raw logits of every position, uncut or over in-process stages", true},
    {"perplexity", cmd_perplexity, "measure how well a model predicts a text", true},
    {"bench", cmd_bench, "measure how fast a model runs, and what memory it takes", true},
};

int main(int argc, char **argv) {
    static const struct cli_program program = {
        .name = "strata",
        .about = "Strata runs a model that is too big for one machine: each machine loads only its own layers.",
        .example = "A first try on one machine:\n\n"
                   "  strata write-package model.gguf --local --out-dir model-package\n"
                   "  strata serve model-package --local-stages 2\n",
        .commands = commands,
        .n_commands = sizeof commands / sizeof commands[0],
        .before_computing = model_backend_tune_process};
    return cli_main(&program, argc, argv);
}
