-- Limitations of models, learned from refusals of their providers.

CREATE TABLE model_limitations (
    -- The provider, with the version of its settings: changed settings have no limitations.
    provider   text NOT NULL,
    model      text NOT NULL,
    -- As JSON.
    limitation text NOT NULL,
    -- The change of requests to the model.
    change     text NOT NULL,
    expires_at integer NOT NULL,
    PRIMARY KEY (provider, model, limitation)
) STRICT, WITHOUT ROWID;
CREATE INDEX model_limitations_by_expiry ON model_limitations (expires_at);
