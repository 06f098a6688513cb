"""What is kept of the orders, and what is asked of them."""

from penstock.streams import Archive, Backfill, View

from .orders import MINUTES, ORDERS

ORDER_ARCHIVE = Archive("order-archive", ORDERS, bucket="lake", prefix="shop/orders")
VIEWS = [
    View("minutes-by-shop", MINUTES, schema="shop STRING, total DOUBLE", query_by="shop"),
    View("shop-names", "shops", schema="name STRING", query_by=("name",)),
]
REPLAY = Backfill("order-replay", ORDER_ARCHIVE, ORDERS, "Orders of a day that is computed again.")
