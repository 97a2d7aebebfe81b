# Doubles from decimal digits and back, exactly, by powers of ten of 128 bits.
#
# Such a power is cut off behind its last bit, and so is its product with a 64-bit number: the 128 bits kept are too
# small by less than 2 units. Where that leaves the rounding open (ties among them), the functions say so, for the C
# library to decide.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #define LLSVM_LARGEST_POWER 350

    typedef unsigned __int128 llsvm_uint128;

    /* 10^k = number 2^exponent, and less than one unit more, at place LLSVM_LARGEST_POWER + k; 2^127 <= number */
    typedef struct { llsvm_uint128 number; int exponent; } llsvm_power;

    static llsvm_power llsvm_powers[2 * LLSVM_LARGEST_POWER + 1];
    static uint64_t llsvm_small_powers[9];
    """
    ctypedef unsigned long long uint128_t "llsvm_uint128"
    ctypedef struct Power "llsvm_power":
        uint128_t number
        int exponent
    int LARGEST_POWER "LLSVM_LARGEST_POWER"
    Power* POWERS "llsvm_powers"
    uint64_t* SMALL_POWERS "llsvm_small_powers"
    int leading_zeros "__builtin_clzll"(unsigned long long number) noexcept nogil
    int trailing_zeros "__builtin_ctzll"(unsigned long long number) noexcept nogil

cdef enum:
    UNDECIDED = 9999
    ONE_EXPONENT = 1075  # in the bits of a double whose mantissa counts as the integer that it is


cdef inline int fill_powers() except -1:
    """To be called once by every module that uses the powers."""
    cdef int power, exponent
    cdef object number, ten = 10, two = 2
    for power in range(-LARGEST_POWER, LARGEST_POWER + 1):
        number = ten ** abs(power)
        if power < 0:
            exponent = -127 - number.bit_length()
            number = two ** -exponent // number
        else:
            exponent = number.bit_length() - 128
            number = number >> exponent if exponent > 0 else number << -exponent
        POWERS[LARGEST_POWER + power].number = (
            <uint128_t><uint64_t>(number >> 64) << 64 | <uint64_t>(number & 0xFFFFFFFFFFFFFFFF))
        POWERS[LARGEST_POWER + power].exponent = exponent
    for power in range(9):
        SMALL_POWERS[power] = ten ** power
    return 0


cdef inline uint128_t times(uint64_t number, const Power* power) noexcept nogil:
    """The upper 128 bits of the 192 of number times power, or less than 2 fewer."""
    cdef uint128_t high = <uint128_t>number * <uint64_t>(power.number >> 64)
    cdef uint128_t low = <uint128_t>number * <uint64_t>power.number
    return high + (low >> 64)


cdef inline int round_off(uint128_t number, int bits, uint64_t* whole) noexcept nogil:
    """number / 2^bits, rounded, number being what times() gives; whether that is sure."""
    cdef uint128_t half = <uint128_t>1 << (bits - 1)
    cdef uint128_t rest = number & ((half << 1) - 1)
    whole[0] = <uint64_t>(number >> bits) + (rest > half)
    return rest + 1 != half and rest != half


cdef inline bint nearest_double(uint64_t digits, int power, double* number) noexcept nogil:
    """digits 10^power, rounded to a double; False where undecided, or not a normal number."""
    cdef const Power* ten
    cdef uint128_t product
    cdef uint64_t mantissa, bits
    cdef int zeros, dropped, exponent
    if digits == 0:
        number[0] = 0
        return True
    if power < -LARGEST_POWER or power > LARGEST_POWER:
        return False
    ten = &POWERS[LARGEST_POWER + power]
    zeros = leading_zeros(digits)
    product = times(digits << zeros, ten)
    dropped = 74 + <int>(product >> 127)
    exponent = dropped + 64 + ten.exponent - zeros + ONE_EXPONENT
    if exponent < 1 or exponent > 2045 or not round_off(product, dropped, &mantissa):
        return False
    # A mantissa rounded up to 2^53 makes the exponent one more.
    bits = (<uint64_t>(exponent - 1) << 52) + mantissa
    memcpy(number, &bits, 8)
    return True


cdef inline int seventeen_digits(double number, uint64_t* digits) noexcept nogil:
    """digits 10^(e - 16), of 17 digits, is the positive number rounded; returns e, or UNDECIDED."""
    cdef const Power* ten
    cdef uint128_t product
    cdef uint64_t bits, mantissa
    cdef int exponent, zeros, e, dropped
    memcpy(&bits, &number, 8)
    mantissa = bits & ((<uint64_t>1 << 52) - 1)
    exponent = <int>(bits >> 52)
    if exponent:
        mantissa |= <uint64_t>1 << 52
    else:
        exponent = 1
    zeros = leading_zeros(mantissa)
    mantissa <<= zeros
    exponent -= ONE_EXPONENT + zeros
    # log2(1 + f) >= f; 315652 / 2^20 is log10(2), and 2^30 more than its error. So e is right or one too small.
    e = <int>((((<int64_t>(exponent + 63) * 1048576) + <int64_t>((mantissa << 1) >> 44)) * 315652 - (1 << 30)) >> 40)
    while True:
        ten = &POWERS[LARGEST_POWER + 16 - e]
        product = times(mantissa, ten)
        dropped = -(exponent + 64 + ten.exponent)
        if <uint64_t>(product >> dropped) < <uint64_t>100000000000000000:
            break
        e += 1
    if not round_off(product, dropped, digits):
        return UNDECIDED
    if digits[0] == <uint64_t>100000000000000000:
        digits[0] = <uint64_t>10000000000000000
        e += 1
    return e


cdef inline uint64_t split_digits(uint64_t number) noexcept nogil:
    """The eight digits of a number below 10^8, a byte each, the first one lowest: in halves, quarters and eighths."""
    cdef uint64_t high = number // 10000
    number = high | (number - 10000 * high) << 32
    high = (number * 10486 >> 20) & <uint64_t>0x0000007F0000007F
    number = high | (number - 100 * high) << 16
    high = (number * 103 >> 10) & <uint64_t>0x000F000F000F000F
    return high | (number - 10 * high) << 8


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return <uint8_t>(byte - 48) < 10


cdef inline int read_digits(const uint8_t* p, uint64_t* number) noexcept nogil:
    """Up to eight digits at p, all at once: their count, and *number continued by them. Reads eight bytes.

    Each byte xor "0" is a digit if that is below 10; the digits are shifted to the high end, zeros before them, and
    joined in pairs, fours and eights.
    """
    cdef uint64_t digits, other
    cdef int count
    memcpy(&digits, p, 8)
    digits ^= <uint64_t>0x3030303030303030
    other = (digits | (digits + <uint64_t>0x7676767676767676)) & <uint64_t>0x8080808080808080
    count = trailing_zeros(other) >> 3 if other else 8
    if count == 0:
        return 0
    digits <<= 64 - 8 * count
    digits = (digits * 10 + (digits >> 8)) & <uint64_t>0x00FF00FF00FF00FF
    digits = (digits * 100 + (digits >> 16)) & <uint64_t>0x0000FFFF0000FFFF
    digits = (digits * 10000 + (digits >> 32)) & <uint64_t>0xFFFFFFFF
    number[0] = number[0] * SMALL_POWERS[count] + digits
    return count


cdef inline const uint8_t* skip_digits(const uint8_t* p, uint64_t* number) noexcept nogil:
    """Behind all the digits at p; beyond 19 of them *number is worthless."""
    cdef int count = read_digits(p, number)
    while count == 8:
        p += 8
        count = read_digits(p, number)
    return p + count


cdef inline bint in_64_bits(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Whether the n digits from p on, among which a point may be, make a number below 2^64 at any rate."""
    while n > 19 and (p[0] == 48 or p[0] == 46):
        n -= p[0] == 48
        p += 1
    return n <= 19
