/* Parser of model-package.json, schema 2. See pkg_manifest.h. Owns nothing but what it puts into the manifest. */
#include "package/pkg_checker.h"

strata_err pkg_manifest2_check(struct pkg_checker *c) {
    pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION, NULL, "schema_version 2 is not read yet");
    return STRATA_OK;
}
