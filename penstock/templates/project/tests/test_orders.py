from jobs.orders.minutes import STREAM

from penstock.testing import rows


def test_orders_of_a_minute_are_summed(spark):
    orders = [
        {"shop": "north", "amount": 2.5, "at": 1_700_000_000_000},
        {"shop": "north", "amount": 4.0, "at": 1_700_000_010_000},
    ]
    assert rows(spark, STREAM, orders=orders) == [{"shop": "north", "minute": 1_699_999_980_000, "total": 6.5}]
