# SPDX-License-Identifier: Apache-2.0
"""The dfusepy command line: parses, calls and prints; one file each command family."""
