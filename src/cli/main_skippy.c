/*
 * The program `skippy-model-package`: the package commands alone, linked without an engine, a network or a server, for
 * publishers. It speaks the dialect of the older tool of that name; commands that it did not have speak ours.
 */
#include "cli/cli_main.h"

static const struct cli_command commands[] = {
    {NULL, NULL, "Commands", false},
    {"inspect", cmd_inspect, "list a model's tensors", false},
    {"plan", cmd_plan, "divide a model over stages", false},
    {"write", cmd_write, "write one layer range as a GGUF file", false},
    {"write-stages", cmd_write_stages, "write one GGUF file for each stage", false},
    {"write-package", cmd_write_package, "cut a GGUF model into a layer package", false},
    {"validate", cmd_validate, "compare slices with their source model", false},
    {"validate-package", cmd_validate_package, "compare a package with its source model", false},
    {"preflight", cmd_preflight, "check a package by itself", false},
    {"validate-glm-dsa-contract", cmd_validate_glm_dsa_contract, "check what the policy glm-dsa-v1 requires", false},
    {"repair-glm-dsa-generation-policy", cmd_repair_glm_dsa_generation_policy,
     "put that policy into a package's manifest", false},
    {NULL, NULL, "Beyond the older tool", false},
    {"convert", cmd_convert, "turn a package of schema 1 into one of schema 2, or back", false},
    {"materialize", cmd_materialize, "merge a package's files for a layer range into one GGUF file", false},
    {"sign", cmd_sign, "sign a package with a publisher's key", false},
    {"verify-signature", cmd_verify_signature, "tell who signed a package, and whether that holds", false},
};

int main(int argc, char **argv) {
    static const struct cli_program program = {
        .name = "skippy-model-package",
        .skippy = true,
        .about = "Writes and checks layer packages of GGUF models.",
        .example = "From model to package:\n\n"
                   "  skippy-model-package write-package model.gguf --out-dir model-package \\\n"
                   "      --model-id org/model-GGUF:Q4_K_M --source-revision COMMIT --source-file model.gguf\n"
                   "  skippy-model-package validate-package model.gguf model-package\n"
                   "  skippy-model-package preflight model-package --stages 4 --verify-sha256\n",
        .commands = commands,
        .n_commands = sizeof commands / sizeof commands[0]};
    return cli_main(&program, argc, argv);
}
