# The nonzero dual variables of rows, a list each: head[slot] is the first node of a row, 0 where it has none.

from libc.stdint cimport int32_t

# nodes[0] is in no list of a row: `next` is the first free node, `label` the number of free ones.
cdef packed struct Node:
    double value
    int32_t label
    int32_t next


cdef inline void put_first(Node* nodes, int32_t* head, int32_t label, double value) noexcept nogil:
    """Into the list that begins with this head; a node must be free."""
    cdef int32_t node = nodes[0].next
    nodes[0].next = nodes[node].next
    nodes[0].label -= 1
    nodes[node].value = value
    nodes[node].label = label
    nodes[node].next = head[0]
    head[0] = node


cdef inline void set_free(Node* nodes, int32_t* head) noexcept nogil:
    """All nodes of the list that begins with this head."""
    cdef int32_t node = head[0], following
    while node:
        following = nodes[node].next
        nodes[node].next = nodes[0].next
        nodes[0].next = node
        nodes[0].label += 1
        node = following
    head[0] = 0
