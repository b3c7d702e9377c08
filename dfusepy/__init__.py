# SPDX-License-Identifier: Apache-2.0
"""A POSIX file system over an object store: `dfusepy.engine` is the programming interface."""
