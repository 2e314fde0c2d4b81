# SPDX-License-Identifier: Apache-2.0
# Reads the console output of one Catch2 program (v2 or v3) and prints "PASSED FAILED SKIPPED" test cases.
# Prints nothing if there is no closing summary: the program crashed or was stopped.
# A test that fails as expected ([!shouldfail]) has done its duty and counts as passed.

# "All tests passed (12 assertions in 3 test cases)"
/^All tests passed \(/ {
    for (i = 2; i <= NF; i++) if ($i == "test") passed = $(i - 1)
    failed = skipped = 0
    closed = 1
}

# "test cases: 5 | 2 passed | 1 failed | 1 skipped | 1 failed as expected"
/^test cases:/ {
    passed = failed = skipped = 0
    count = split($0, parts, "|")
    for (i = 2; i <= count; i++) {
        split(parts[i], words, " ")
        if (parts[i] ~ /as expected/) passed += words[1]
        else if (words[2] == "passed") passed += words[1]
        else if (words[2] == "failed") failed += words[1]
        else if (words[2] == "skipped") skipped += words[1]
    }
    closed = 1
}

/^No tests ran/ {
    passed = failed = skipped = 0
    closed = 1
}

END {
    if (closed) print passed, failed, skipped
}
