"""Lists of nonzero dual variables, one behind the other and back (_lists.pxd)."""

import numpy as np

from libc.stdint cimport int32_t, int64_t

from _lists cimport Node, put_first

cdef Node _node
NODE = np.asarray(<Node[:1]>&_node).dtype


def pack(
    const int32_t[::1] head, const Node[::1] nodes, int32_t[::1] counts, int32_t[::1] labels, double[::1] values
):
    """The lists of rows one behind the other: how many nonzero alphas each has, their classes and values. Returns how
    many there are in all, which is all that is found out where labels is empty."""
    cdef int64_t r, n = 0
    cdef int32_t node
    with nogil:
        for r in range(head.shape[0]):
            counts[r] = 0
            node = head[r]
            while node:
                if labels.shape[0]:
                    labels[n] = nodes[node].label
                    values[n] = nodes[node].value
                counts[r] += 1
                n += 1
                node = nodes[node].next
    return n


def unpack(
    const int32_t[::1] counts, const int32_t[::1] labels, const double[::1] values, int32_t[::1] head, Node[::1] nodes
):
    """The opposite of pack, for rows without lists; there must be free nodes enough."""
    cdef int64_t r, k, n = 0
    with nogil:
        for r in range(head.shape[0]):
            n += counts[r]
            for k in range(n - 1, n - counts[r] - 1, -1):
                put_first(&nodes[0], &head[r], labels[k], values[k])
