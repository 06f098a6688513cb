from penstock.catalog import load


def test_the_capture_has_a_record_for_each_shop():
    capture = load().captures["shops"]
    assert (capture.topic.name, list(capture.key), capture.cursor) == ("shops", ["id"], "updated_at")
