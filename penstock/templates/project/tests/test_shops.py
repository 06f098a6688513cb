from penstock.catalog import load
from penstock.testing import Record, documents


def test_the_capture_has_a_record_for_each_shop():
    capture = load().captures["shops"]
    assert (capture.topic.name, list(capture.key), capture.cursor) == ("shops", ["id"], "updated_at")


def test_a_shop_is_a_document(spark):
    shop = Record("shops", key='{"id":1}', value='{"id":1,"name":"north","updated_at":"2026-01-01 00:00:00"}')
    [document] = documents(spark, "shops-documents", {"shops": [shop]})
    assert (document["id"], document["name"]) == (1, "NORTH")
