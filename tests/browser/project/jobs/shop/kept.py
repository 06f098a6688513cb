"""What is kept of the orders, and what is asked of them."""

from penstock.streams import Archive, Backfill, Panel, View

from .orders import MINUTES, ORDERS

ORDER_ARCHIVE = Archive("order-archive", ORDERS, bucket="lake", prefix="shop/orders")
VIEWS = [
    View("minutes-by-shop", MINUTES, schema="shop STRING, total DOUBLE", query_by="shop"),
    View("shop-names", "shops", schema="name STRING", query_by=("name",)),
]
SHOPS = Panel("shop-totals", "Shops", VIEWS[0], dimensions={"shop": "Shop"}, empty="Run the stream `order-minutes`.")
REPLAY = Backfill("order-replay", ORDER_ARCHIVE, ORDERS, "Orders of a day that is computed again.")
